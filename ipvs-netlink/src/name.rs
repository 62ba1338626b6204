//! Names that the kernel keeps in fixed-size fields.

use std::fmt;
use std::str::FromStr;

/// A scheduler's name, as `ip_vs_scheduler_get` looks it up: at most 15 bytes (`IP_VS_SCHEDNAME_MAXLEN` less its NUL).
pub type SchedulerName = Name<15>;

/// A persistence engine's name: at most 16 bytes (`IP_VS_PENAME_MAXLEN`).
pub type EngineName = Name<16>;

/// A network interface's name: at most 15 bytes (`IFNAMSIZ` less its NUL).
pub type InterfaceName = Name<15>;

/// A string of 1 to `MAX` bytes without NUL, stored in place.
///
/// # Invariant
/// Never empty, valid UTF-8, no NUL byte; so it always fits the kernel's field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<const MAX: usize> {
    bytes: [u8; MAX],
    len: u8,
}

impl<const MAX: usize> Name<MAX> {
    /// Takes `text` as a name.
    ///
    /// # Errors
    /// [`InvalidName`] when it is empty, longer than `MAX` bytes or contains a NUL.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let reason = match text.len() {
            0 => "is empty",
            n if n > MAX => "is too long for the kernel",
            _ if text.contains('\0') => "contains a NUL",
            _ => {
                let mut bytes = [0; MAX];
                bytes[..text.len()].copy_from_slice(text.as_bytes());
                let len = u8::try_from(text.len()).map_err(|_| InvalidName {
                    reason: "is too long for the kernel",
                    max: MAX,
                })?;
                return Ok(Self { bytes, len });
            }
        };
        Err(InvalidName { reason, max: MAX })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        // The constructor copied whole UTF-8 text, so this cannot fail; an empty name is the harmless answer if it did.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl<const MAX: usize> FromStr for Name<MAX> {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl<const MAX: usize> fmt::Display for Name<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const MAX: usize> fmt::Debug for Name<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a text cannot be a kernel name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name {reason} (at most {max} bytes)")]
pub struct InvalidName {
    reason: &'static str,
    max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_fits_and_refuses_the_rest() {
        assert_eq!(SchedulerName::new("wlc").unwrap().as_str(), "wlc");
        assert_eq!(
            SchedulerName::new("123456789012345")
                .unwrap()
                .to_string()
                .len(),
            15
        );
        assert!(SchedulerName::new("").is_err());
        assert!(SchedulerName::new("1234567890123456").is_err());
        assert!(EngineName::new("1234567890123456").is_ok());
        assert!(SchedulerName::new("a\0b").is_err());
    }
}
