//! Names that the kernel stores in fixed-size fields.

use std::fmt;
use std::str::FromStr;

/// The name of a scheduler, at most 15 bytes (`IP_VS_SCHEDNAME_MAXLEN` less the NUL).
pub type SchedulerName = Name<15>;

/// The name of a persistence engine, at most 16 bytes (`IP_VS_PENAME_MAXLEN`).
pub type EngineName = Name<16>;

/// The name of a network interface, at most 15 bytes (`IFNAMSIZ` less the NUL).
pub type InterfaceName = Name<15>;

/// A string of 1 to `MAX` bytes without NUL, stored without allocation.
///
/// # Invariant
/// Valid UTF-8, not empty and without NUL bytes, so it always fits the kernel's field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<const MAX: usize> {
    bytes: [u8; MAX],
    len: u8,
}

impl<const MAX: usize> Name<MAX> {
    /// Converts `text` to a name.
    ///
    /// # Errors
    /// [`InvalidName`] if `text` is empty, longer than `MAX` bytes or contains a NUL.
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

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        // Cannot fail: `new` copied valid UTF-8. The default only avoids a panic in library code.
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

/// The reason why a text is not a valid name.
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
    fn names_that_do_not_fit_the_kernels_field_are_rejected() {
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
