//! The planes beside the switch: for each its vocabulary, and one list of all of them ([`ALL`]).
//!
//! A plane is a [`Plane`]: a name, a specification (what a host's plane is to have under a name), a report (what it tells), and
//! what is allowed in them. Both travel and rest as JSON, so that a field can be added without breaking a log. To the loop they
//! are bytes ([`weir_model::plane`]): whoever takes something in asks here what it may be (the API before it is ordered, the
//! process of the plane before it acts).
//!
//! Departure: deciding does not ask. Controllers of two releases know two lists, and must decide the same.
//!
//! What a plane is to have under a name is a resource too, for `weir apply`: of the plane's [`Plane::KIND`].
//!
//! A plane more is a module with its vocabulary and one word in the list: see `docs/adding-a-plane.md`.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use weir_model::plane::{ORDERS_MAX, REPORT_BYTES_MAX, SPEC_BYTES_MAX, name_problem};

/// Why something is none that a plane takes, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {allowed}")]
pub struct Problem {
    /// What is wrong: `name`, `spec`, or a field of the specification such as `spec.text`.
    pub field: String,
    /// What is allowed.
    pub allowed: String,
}

impl Problem {
    /// A field, and what it takes.
    pub fn new(field: impl Into<String>, allowed: impl Into<String>) -> Problem {
        Problem { field: field.into(), allowed: allowed.into() }
    }
}

/// A field of a specification, for people: what `weir explain` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path, such as `files.name`.
    pub path: &'static str,
    /// How it is written, such as `text` or `list of fields`.
    pub form: &'static str,
    /// What it is when it is left out, empty where that is nothing; none where it must be given.
    pub default: Option<&'static str>,
    /// What it says.
    pub text: &'static str,
}

impl Field {
    /// One that must be given.
    pub const fn required(path: &'static str, form: &'static str, text: &'static str) -> Field {
        Field { path, form, default: None, text }
    }

    /// One that may be left out, and what it is then.
    pub const fn with_default(
        path: &'static str,
        form: &'static str,
        default: &'static str,
        text: &'static str,
    ) -> Field {
        Field { path, form, default: Some(default), text }
    }
}

/// The vocabulary of a plane.
pub trait Plane {
    /// Its name, a DNS label.
    const NAME: &'static str;
    /// What it is for, in one line.
    const ABOUT: &'static str;
    /// The kind under which `weir apply` has what it is to have.
    const KIND: &'static str = Self::NAME;
    /// The fields of a specification, in the order in which they are told; none where nothing is said of them.
    const FIELDS: &'static [Field] = &[];
    /// Most specifications at one host, at most [`ORDERS_MAX`].
    const ORDERS_MAX: usize = 64;
    /// Most bytes of a specification, at most [`SPEC_BYTES_MAX`].
    const SPEC_BYTES_MAX: usize = SPEC_BYTES_MAX;
    /// What a host's plane is to have under a name. It refuses fields that it does not know.
    type Spec: Serialize + DeserializeOwned + fmt::Debug;
    /// What it tells.
    type Report: Serialize + DeserializeOwned + fmt::Debug;

    /// Whether a specification is one that the plane can have under a name, as far as that can be said without the host.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    fn check(name: &str, spec: &Self::Spec) -> Result<(), Problem>;

    /// A specification in a few words, for people.
    fn describe(name: &str, spec: &Self::Spec) -> String;

    /// A report in lines for people, for `weir status`: what matters most first.
    fn tell(report: &Self::Report) -> Vec<String> {
        serde_json::to_string(report).into_iter().collect()
    }
}

/// Reads a specification of a plane, and checks it.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn read<P: Plane>(name: &str, bytes: &[u8]) -> Result<P::Spec, Problem> {
    if let Some(allowed) = name_problem(name) {
        return Err(Problem::new("name", allowed));
    }
    if bytes.len() > P::SPEC_BYTES_MAX {
        let allowed = format!("at most {} bytes, and it has {}", P::SPEC_BYTES_MAX, bytes.len());
        return Err(Problem::new("spec", allowed));
    }
    let spec = serde_json::from_slice(bytes).map_err(|error| Problem::new("spec", error.to_string()))?;
    P::check(name, &spec)?;
    Ok(spec)
}

/// A plane of the list, without its types.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// The kind of its resources.
    pub kind: &'static str,
    /// The fields of a specification.
    pub fields: &'static [Field],
    /// Most specifications at one host.
    pub orders_max: usize,
    /// Most bytes of a specification.
    pub spec_bytes_max: usize,
    /// Checks a specification.
    pub check: fn(name: &str, spec: &[u8]) -> Result<(), Problem>,
    /// Checks a report.
    pub check_report: fn(report: &[u8]) -> Result<(), Problem>,
    /// A specification in a few words; what is wrong with it when it is none.
    pub describe: fn(name: &str, spec: &[u8]) -> String,
    /// A report in lines; what is wrong with it when it is none.
    pub tell: fn(report: &[u8]) -> Vec<String>,
    /// A specification with what it leaves out as it means it; nothing when it is none. Two that say the same have the same.
    pub normal: fn(name: &str, spec: &[u8]) -> Option<serde_json::Value>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Kind {
    /// That of a plane.
    pub const fn of<P: Plane>() -> Kind {
        assert!(
            P::ORDERS_MAX <= ORDERS_MAX && P::SPEC_BYTES_MAX <= SPEC_BYTES_MAX,
            "over what the loop carries"
        );
        Kind {
            name: P::NAME,
            about: P::ABOUT,
            kind: P::KIND,
            fields: P::FIELDS,
            orders_max: P::ORDERS_MAX,
            spec_bytes_max: P::SPEC_BYTES_MAX,
            check: |name, bytes| read::<P>(name, bytes).map(drop),
            check_report: |bytes| {
                if bytes.len() > REPORT_BYTES_MAX {
                    return Err(Problem::new("report", format!("at most {REPORT_BYTES_MAX} bytes")));
                }
                let report = serde_json::from_slice::<P::Report>(bytes);
                report.map(drop).map_err(|error| Problem::new("report", error.to_string()))
            },
            describe: |name, bytes| match read::<P>(name, bytes) {
                Ok(spec) => P::describe(name, &spec),
                Err(problem) => format!("not readable by this release: {problem}"),
            },
            tell: |bytes| match serde_json::from_slice::<P::Report>(bytes) {
                Ok(report) => P::tell(&report),
                Err(error) => vec![format!("not readable by this release: {error}")],
            },
            normal: |name, bytes| {
                read::<P>(name, bytes).ok().and_then(|spec| serde_json::to_value(spec).ok())
            },
        }
    }
}

/// Lists planes: their modules, and [`ALL`].
macro_rules! planes {
    ($($(#[$when:meta])* $module:ident::$plane:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// Every plane of this release.
        pub const ALL: &[Kind] = &[$($(#[$when])* Kind::of::<$module::$plane>()),*];
    };
}

planes! {
    filewall::FileWall,
    monitor::Monitor,
    // For tests and as an example; released programs do not have it.
    #[cfg(debug_assertions)]
    echo::Echo,
}

/// The plane of a list that has this name.
pub fn find<'a>(planes: &'a [Kind], name: &str) -> Option<&'a Kind> {
    planes.iter().find(|kind| kind.name == name)
}

/// The plane of a list whose resources are of a kind, also in the plural.
pub fn of_kind<'a>(planes: &'a [Kind], kind: &str) -> Option<&'a Kind> {
    let named = |wanted: &str| planes.iter().find(|plane| plane.kind == wanted);
    named(kind).or_else(|| named(kind.strip_suffix('s')?))
}

/// What is said of a name that no plane has.
pub fn unknown(planes: &[Kind], name: &str) -> Problem {
    let known: Vec<&str> = planes.iter().map(|kind| kind.name).collect();
    Problem::new("plane", format!("'{name}' is no plane of this release, which has: {}", known.join(", ")))
}

#[cfg(test)]
mod tests;
