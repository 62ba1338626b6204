//! The kinds of findings. Each has a section in `docs/explain.md`.

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Its code, which never changes its meaning.
    pub(crate) code: &'static str,
    /// The title of its section.
    pub(crate) title: &'static str,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal $title:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: Kind = Kind { code: $code, title: $title };)*
        /// All kinds, by code.
        pub(crate) const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    NO_SERVICE = "X010" "No Service has this address";
    UNLISTED_PORT = "X011" "The address is a Service's, the port is not";
    OWN_PROCESS = "X012" "The address is this node's, the port is no Service's";
    NO_NODE_PORT_HERE = "X013" "The node port is not served at this address";
    NO_ENDPOINT = "X020" "No endpoint accepts connections";
    NO_LOCAL_ENDPOINT = "X021" "The traffic policy is Local, and this node has no endpoint";
    SOURCE_RANGES = "X022" "The client is in no source range";
    UNKNOWN_SOURCE = "X023" "Source ranges decide, and the client's address is not given";
}
