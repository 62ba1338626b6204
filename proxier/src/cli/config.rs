//! kube-proxy's configuration: flags, files, defaults, validation.
//!
//! ```text
//!  flags ──▶ FlagValues ──┐
//!           (table FLAGS) ├─▶ Resolved: Values, origins, notices ─▶ NodeSettings
//!  file ───▶ ReadFile ────┘         │
//!           (table FIELDS)          └─▶ the file of --write-config-to
//! ```
//!
//! Two tables are the definitions: [`FLAGS`] has kube-proxy's flags and [`FIELDS`] the fields of its
//! file (`KubeProxyConfiguration`, `kubeproxy.config.k8s.io/v1alpha1`). A configuration is a map from the path
//! of a field to its value. The command line, its help, the file's reader and writer, the warnings about settings
//! without an effect, and `proxier/docs/configuration.md` are made from the tables or compared with them.
//!
//! All functions here are pure. kube-proxy 1.36.2 is the reference; `proxier/tests/configuration/`
//! runs it beside this program. What kube-proxy accepts has the same meaning here, or is refused: Go's spellings of
//! numbers (`0x10`, `010`), quoted elements of lists in flags, repeated fields of a file, several documents.

mod checks;
mod duration;
mod fields;
mod file;
mod flags;
mod gates;
mod kind;
mod origin;
mod resolve;
mod settings;
mod values;

pub use fields::{FIELDS, Field};
pub(crate) use flags::FlagValues;
pub use flags::{FLAGS, Flag};
pub(crate) use origin::SettingErrors;
pub(crate) use resolve::{Resolved, resolve};
pub(crate) use settings::{LogFormat, Logging, NodeSettings};

/// The API version of configuration files.
pub(crate) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// The kind of configuration files.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// The effect of a flag or field in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The same as in kube-proxy.
    Same,
    /// Something similar; the text says how it differs.
    Differs(&'static str),
    /// Nothing; the text says why. If it is set, the program logs one warning.
    Nothing(&'static str),
}
