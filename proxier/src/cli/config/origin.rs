//! The origins of settings, and errors that name them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The place that sets a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A line of the configuration file, counted from 1.
    Line(u64),
    /// A flag, without its dashes.
    Flag(&'static str),
}

/// The origins of all settings that are not defaults, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    /// The configuration file.
    pub(crate) file: Option<PathBuf>,
    origins: BTreeMap<String, Origin>,
}

impl Origins {
    pub(crate) fn insert(&mut self, path: impl Into<String>, origin: Origin) {
        self.origins.insert(path.into(), origin);
    }

    /// Returns whether the setting was set, by a flag or the file.
    pub(crate) fn is_set(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    /// Returns the origin of the setting, or of the longest part of its path that has one.
    fn find(&self, path: &str) -> Option<&Origin> {
        let mut path = path;
        loop {
            if let Some(origin) = self.origins.get(path) {
                return Some(origin);
            }
            (path, _) = path.rsplit_once(['[', '.'])?;
        }
    }

    /// Returns the name of the setting for messages: the flag, or file, line and path.
    pub(crate) fn name(&self, path: &str) -> String {
        match self.find(path) {
            Some(Origin::Flag(name)) => format!("--{name}"),
            Some(Origin::Line(line)) => self.place(Some(*line), path),
            None => path.to_owned(),
        }
    }

    /// Returns `FILE:LINE: PATH`.
    pub(crate) fn place(&self, line: Option<u64>, path: &str) -> String {
        let file = self
            .file
            .as_deref()
            .map_or_else(String::new, |file| file.display().to_string());
        let line = line.map_or_else(String::new, |line| format!(":{line}"));
        match path {
            "" => format!("{file}{line}"),
            path => format!("{file}{line}: {path}"),
        }
    }
}

/// A setting with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidSetting {
    /// The path of the setting, such as `nodePortAddresses[1]`.
    pub(crate) path: String,
    /// The value, and what is wrong with it.
    pub(crate) reason: String,
}

impl InvalidSetting {
    pub(crate) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason: reason.into(),
        }
    }

    /// Returns an error in the form of Kubernetes: `invalid value VALUE: RULE`.
    pub(super) fn value(path: impl Into<String>, value: impl fmt::Display, rule: &str) -> Self {
        Self::new(path, format!("invalid value {value}: {rule}"))
    }
}

/// All errors of a configuration; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct SettingErrors(pub(crate) Vec<String>);

impl SettingErrors {
    /// Names each setting by its origin. Returns an error if there is any.
    pub(crate) fn check(invalid: &[InvalidSetting], origins: &Origins) -> Result<(), Self> {
        let line = |invalid: &InvalidSetting| {
            format!("{}: {}", origins.name(&invalid.path), invalid.reason)
        };
        Self::unless_empty(invalid.iter().map(line).collect())
    }

    /// Returns an error if there is any.
    pub(super) fn unless_empty(errors: Vec<String>) -> Result<(), Self> {
        match &errors[..] {
            [] => Ok(()),
            _ => Err(Self(errors)),
        }
    }
}

impl fmt::Display for SettingErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}
