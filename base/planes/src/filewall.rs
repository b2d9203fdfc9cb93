//! FileWall: all files of policies that a FileWall of a host is to have, under its name (row F).

use crate::{Field, Plane, Problem};
use serde::{Deserialize, Serialize};
use weir_model::filewall::{PolicyFile, WALLS_MAX, files_problem};

/// See the module.
#[derive(Debug)]
pub struct FileWall;

/// The policies of a FileWall: all of them, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The files.
    pub files: Vec<PolicyFile>,
}

/// What a FileWall tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The version of the order whose policies are in force; 0 where none was ordered.
    pub version: u64,
}

impl Plane for FileWall {
    const NAME: &'static str = "filewall";
    const ABOUT: &'static str = "policies of a FileWall on the host";
    const FIELDS: &'static [Field] = &[
        Field::required("files", "list of fields", "All its files, 1 to 32, in the order of their names."),
        Field::required(
            "files.name",
            "text",
            "Name of the file: it ends in .yaml, .yml or .wat; policies are read in the order of names.",
        ),
        Field::required(
            "files.text",
            "text",
            "What is in it: policies (YAML), or a module that one of them names. 131072 bytes in all.",
        ),
    ];
    const ORDERS_MAX: usize = WALLS_MAX;
    type Spec = Spec;
    type Report = Report;

    fn check(name: &str, spec: &Spec) -> Result<(), Problem> {
        weir_model::Label::new(name).map_err(|error| Problem::new("name", error.to_string()))?;
        files_problem(&spec.files).map_or(Ok(()), |allowed| Err(Problem::new("spec.files", allowed)))
    }

    fn describe(_name: &str, spec: &Spec) -> String {
        let names: Vec<&str> = spec.files.iter().map(|file| file.name.as_str()).collect();
        format!("policies {}", names.join(", "))
    }

    fn tell(report: &Report) -> Vec<String> {
        vec![match report.version {
            0 => "its policies are nobody's order".to_owned(),
            version => format!("the policies of v{version} are in force"),
        }]
    }
}
