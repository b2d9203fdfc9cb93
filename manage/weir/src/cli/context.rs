//! Which controller, and who we are.

use super::Failure;
use std::path::{Path, PathBuf};
use weir_api::client::Context;

/// Places looked at in turn when no context is named.
fn places() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/weir/admin.json"));
    home.into_iter()
        .chain(["/etc/weir/admin.json", "/var/lib/weir/controller/admin.json"].map(PathBuf::from))
        .collect()
}

/// The context of a lab on this machine. It is taken only when that is asked for: a lab may be anybody's.
pub const LAB: &str = "/run/weir-lab/admin.json";

/// Reads the context.
///
/// # Errors
/// [`Failure::Input`] that says where one was looked for.
pub fn load(named: Option<&Path>) -> Result<Context, Failure> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => places().into_iter().find(|path| path.exists()).ok_or_else(|| {
            let places: Vec<String> = places().iter().map(|path| path.display().to_string()).collect();
            let lab = if Path::new(LAB).exists() { "; a lab is up on this machine, --lab takes it" } else { "" };
            Failure::Input(format!(
                "no context: copy admin.json from the controller's state directory to one of {}, or name it with --context{lab}",
                places.join(", ")
            ))
        })?,
    };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let what = format!(
                "context {}: there is no such file; copy admin.json there from the controller's state directory",
                path.display()
            );
            return Failure::Missing(what);
        }
        Failure::io(format!("context {}", path.display()))(error)
    })?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::Input(format!(
            "context {}: {error}: copy admin.json anew from the controller's state directory",
            path.display()
        ))
    })
}
