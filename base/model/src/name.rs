//! Names are DNS labels, everywhere, so that a resource's name is also its host name.

use serde::{Deserialize, Serialize};
use std::fmt;
use weir_base::limits::LABEL_BYTES_MAX;

/// A DNS label in lower case: 1 to 63 of `a-z`, `0-9` and `-`, with a letter or digit at both ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

/// A name that is no DNS label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a name: use 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit")]
pub struct NotALabel(pub String);

impl Label {
    /// Checks and makes a label.
    ///
    /// # Errors
    /// [`NotALabel`] with the text given.
    pub fn new(text: impl Into<String>) -> Result<Label, NotALabel> {
        let text = text.into();
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = text.as_bytes();
        let ends = matches!((bytes.first(), bytes.last()), (Some(&a), Some(&z)) if inner(a) && inner(z));
        if ends && bytes.len() <= LABEL_BYTES_MAX && bytes.iter().all(|&b| inner(b) || b == b'-') {
            Ok(Label(text))
        } else {
            Err(NotALabel(text))
        }
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Label {
    type Error = NotALabel;
    fn try_from(text: String) -> Result<Label, NotALabel> {
        Label::new(text)
    }
}

impl std::str::FromStr for Label {
    type Err = NotALabel;
    fn from_str(text: &str) -> Result<Label, NotALabel> {
        Label::new(text)
    }
}

impl From<Label> for String {
    fn from(label: Label) -> String {
        label.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Label {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
