//! Who may do what: the namespaces of an authenticated peer. Checked before anything is ordered.

use std::collections::BTreeSet;
use weir_store::name::namespace_of;
use weir_store::{Operation, Query, Step, principal_of};

/// The namespaces that somebody may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and to read the tables of apps.
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// Somebody, as the transport knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name in the certificate, or what the token stands for.
    pub name: String,
    /// What they may use.
    pub namespaces: Namespaces,
}

impl Identity {
    /// An administrator.
    pub fn admin(name: impl Into<String>) -> Identity {
        Identity { name: name.into(), namespaces: Namespaces::All }
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

    fn check(&self, name: &str) -> Result<(), String> {
        if self.may_use(namespace_of(name)) {
            return Ok(());
        }
        let name: String = name.chars().take(128).collect();
        Err(format!("'{}' may not use '{name}'", self.name))
    }

    /// Whether an operation may be ordered for them.
    ///
    /// # Errors
    /// Why not.
    pub fn check_operation(&self, operation: &Operation) -> Result<(), String> {
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
                Err(format!("'{}' may not set the quota of '{namespace}': an administrator may", self.name))
            }
            Operation::OpenClient | Operation::CloseClient { .. } => Ok(()),
        }
    }

    /// Whether a query may be answered to them.
    ///
    /// # Errors
    /// Why not.
    pub fn check_query(&self, query: &Query) -> Result<(), String> {
        match query {
            Query::Get { table, .. } | Query::Follow { table, .. } | Query::Scan { table, .. } => {
                self.check(table)
            }
            Query::Tables { namespace } | Query::Procedures { namespace } | Query::Usage { namespace } => {
                self.check(&if namespace.is_empty() { String::new() } else { format!("{namespace}/") })
            }
            Query::Call { procedure, .. } => self.check(procedure),
            Query::Digest => Ok(()),
        }
    }

    /// Whether they may read a table.
    pub fn may_read(&self, table: &str) -> bool {
        self.may_use(namespace_of(table))
    }
}
