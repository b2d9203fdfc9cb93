//! Where a member of a group is. In the group's own list of members it is one text: `REPLICA,API,SESSION`.

use std::fmt;
use std::net::SocketAddr;

/// See the module. Each is `ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    /// Where the other controllers reach it.
    pub replica: String,
    /// Where people and tools reach it.
    pub api: String,
    /// Where hosts and gateways reach it.
    pub session: String,
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.replica, self.api, self.session)
    }
}

impl MemberAddress {
    /// Reads what [`fmt::Display`] writes; what is missing is empty.
    pub fn read(text: &str) -> MemberAddress {
        let mut parts = text.split(',').map(str::to_string);
        let mut next = || parts.next().unwrap_or_default();
        MemberAddress { replica: next(), api: next(), session: next() }
    }

    /// Where the other controllers reach the member of a text.
    pub fn replica_of(text: &str) -> &str {
        text.split(',').next().unwrap_or_default()
    }

    /// Whether each is an address that can be reached.
    ///
    /// # Errors
    /// The field, its value, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        for (field, text) in [("replica", &self.replica), ("api", &self.api), ("session", &self.session)] {
            let good = |address: SocketAddr| address.port() != 0 && !address.ip().is_unspecified();
            if !text.parse().is_ok_and(good) {
                return Err(format!(
                    "{field}: '{text}' is not allowed: use the one ADDRESS:PORT where others reach it, such as \
                     192.0.2.11:7445"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::MemberAddress;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let address = MemberAddress {
            replica: "[2001:db8::1]:7445".into(),
            api: "192.0.2.1:7443".into(),
            session: "192.0.2.1:7444".into(),
        };
        assert_eq!(MemberAddress::read(&address.to_string()), address);
        assert_eq!(MemberAddress::replica_of(&address.to_string()), "[2001:db8::1]:7445");
        assert!(address.check().is_ok());
        let open = MemberAddress { api: "0.0.0.0:7443".into(), ..address };
        assert!(open.check().is_err_and(|text| text.starts_with("api: '0.0.0.0:7443'")));
    }
}
