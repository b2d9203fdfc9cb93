//! Who may do what: the namespaces of an authenticated peer, and what there. Checked before anything is ordered, and
//! again when it is carried out ([`crate::Terms`]): meanwhile somebody may have been revoked.

use crate::name::namespace_of;
use crate::{Operation, Query, Step, principal_of};
use std::collections::BTreeSet;

/// The namespaces that somebody may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and to read the tables of apps.
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// What somebody may do in their namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// All that tables, procedures and clients are for.
    Everything,
    /// Read and write entries of tables that are there. Requests are done as they come: there is no client whose requests
    /// may be repeated.
    Entries,
}

/// Somebody, as the transport knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name in the certificate, or what the token stands for.
    pub name: String,
    /// What they may use.
    pub namespaces: Namespaces,
    /// And how.
    pub may: May,
}

/// Why somebody may not do something. Ordered outcomes have these words, so they never change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It is in a namespace of others.
    #[error("'{who}' may not use '{name}'")]
    Name {
        /// Who asks.
        who: String,
        /// The table, procedure or namespace.
        name: String,
    },
    /// It is no reading or writing of entries.
    #[error(
        "'{who}' may not do this: tables, procedures and clients are an administrator's; it reads and writes entries of tables"
    )]
    Administration {
        /// Who asks.
        who: String,
    },
    /// It is a quota.
    #[error("'{who}' may not set the quota of '{namespace}': an administrator may")]
    Quota {
        /// Who asks.
        who: String,
        /// The namespace.
        namespace: String,
    },
    /// It is a call of a procedure.
    #[error("'{who}' may not call procedures: an administrator may")]
    Call {
        /// Who asks.
        who: String,
    },
}

impl Identity {
    /// The name of who shows the administrator's token or certificate.
    pub const ADMINISTRATOR: &'static str = "administrator";

    /// An administrator.
    pub fn admin(name: impl Into<String>) -> Identity {
        Identity { name: name.into(), namespaces: Namespaces::All, may: May::Everything }
    }

    /// A host or gateway: entries in the namespace `host.NAME`; names of actuators have no dot, so it is nobody else's. Its name here is
    /// one that no administrator has.
    pub fn actuator(name: &str) -> Identity {
        let namespaces = Namespaces::Only(BTreeSet::from([format!("host.{name}")]));
        Identity { name: format!("actuator/{name}"), namespaces, may: May::Entries }
    }

    /// Nobody that is known: whose name is no administrator's and no actuator's, or one that is gone.
    pub fn nobody() -> Identity {
        Identity { name: "nobody".into(), namespaces: Namespaces::Only(BTreeSet::new()), may: May::Entries }
    }

    /// The number under which the store knows whose a client is. It tells peers apart that are
    /// authenticated already; it is no secret and proves nothing.
    pub fn principal(&self) -> u64 {
        principal_of(&self.name)
    }

    fn may_use(&self, namespace: Option<&str>) -> bool {
        match &self.namespaces {
            Namespaces::All => true,
            Namespaces::Only(own) => namespace.is_some_and(|namespace| own.contains(namespace)),
        }
    }

    fn check(&self, name: &str) -> Result<(), Denied> {
        if self.may_use(namespace_of(name)) {
            return Ok(());
        }
        let name: String = name.chars().take(128).collect();
        Err(Denied::Name { who: self.name.clone(), name })
    }

    /// Whether an operation may be ordered for them.
    ///
    /// # Errors
    /// Why not.
    pub fn check_operation(&self, operation: &Operation) -> Result<(), Denied> {
        if self.may == May::Entries && !matches!(operation, Operation::Write(_) | Operation::Transaction(_)) {
            return Err(Denied::Administration { who: self.name.clone() });
        }
        match operation {
            Operation::Write(write) => self.check(&write.table),
            Operation::Transaction(steps) => steps.iter().try_for_each(|step| match step {
                Step::Check { table, .. } => self.check(table),
                Step::Read(query) => self.check_query(query),
                Step::Write(write) => self.check(&write.table),
            }),
            Operation::Call { procedure, .. }
            | Operation::LoadProcedure { procedure, .. }
            | Operation::RemoveProcedure { procedure } => self.check(procedure),
            Operation::CreateTable { table, .. }
            | Operation::AlterTable { table, .. }
            | Operation::DropTable { table } => self.check(table),
            Operation::SetQuota { .. } if self.namespaces == Namespaces::All => Ok(()),
            Operation::SetQuota { namespace, .. } => {
                Err(Denied::Quota { who: self.name.clone(), namespace: namespace.clone() })
            }
            Operation::OpenClient | Operation::CloseClient { .. } => Ok(()),
        }
    }

    /// Whether a query may be answered to them.
    ///
    /// # Errors
    /// Why not.
    pub fn check_query(&self, query: &Query) -> Result<(), Denied> {
        match query {
            Query::Get { table, .. } | Query::Follow { table, .. } | Query::Scan { table, .. } => {
                self.check(table)
            }
            Query::Tables { namespace } | Query::Procedures { namespace } | Query::Usage { namespace } => {
                self.check(&if namespace.is_empty() { String::new() } else { format!("{namespace}/") })
            }
            Query::Call { .. } if self.may == May::Entries => Err(Denied::Call { who: self.name.clone() }),
            Query::Call { procedure, .. } => self.check(procedure),
            Query::Digest => Ok(()),
        }
    }

    /// Whether they may read a table.
    pub fn may_read(&self, table: &str) -> bool {
        self.may_use(namespace_of(table))
    }
}
