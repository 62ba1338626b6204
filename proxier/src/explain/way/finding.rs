//! The kinds of findings. Each has a section in `docs/explain.md`.

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Its code, which never changes its meaning.
    pub(crate) code: &'static str,
    /// The title of its section.
    title: &'static str,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal $title:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: Kind = Kind { code: $code, title: $title };)*
        #[cfg(test)]
        const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    NO_SERVICE = "X010" "No Service has this address";
    UNLISTED_PORT = "X011" "The address is a Service's, the port is not";
    OWN_PROCESS = "X012" "The address is this node's, the port is no Service's";
    NO_NODE_PORT_HERE = "X013" "The node port is not served at this address";
    UNALLOCATED = "X014" "The address is in a service range, and no Service has it";
    NO_ENDPOINT = "X020" "No endpoint accepts connections";
    NO_LOCAL_ENDPOINT = "X021" "The traffic policy is Local, and this node has no endpoint";
    SOURCE_RANGES = "X022" "The client is in no source range";
    UNKNOWN_SOURCE = "X023" "Source ranges decide, and the client's address is not given";
    NO_RULES = "X030" "The packet rules are missing";
    NOT_IN_KERNEL = "X031" "The kernel lacks the frontend";
    UNLIKE_PLAN = "X032" "The kernel is unlike the plan";
    SETTING = "X040" "A kernel setting breaks the way";
    REVERSE_PATH = "X041" "Reverse path filtering drops packets";
    NO_ROUTE = "X042" "No route";
    ANSWERS_ARP = "X043" "This node answers ARP requests for the address";
    PORT_CLASH = "X044" "A process of this node may take the node port";
    FOREIGN_CHAIN = "X050" "A chain of another program drops packets";
    FOREIGN_NAT = "X051" "A NAT rule of another program takes connections";
    NO_PACKET = "X060" "No packet of the client arrived";
    DROPPED = "X061" "A rule drops packets now";
    LOST_ON_THE_WAY = "X062" "Packets end between two hooks";
    NO_ANSWER = "X063" "Endpoints do not answer";
    RESET = "X064" "Endpoints refuse";
    NO_CONNECTION = "X070" "The client has no connection";
    LEFT_BEHIND = "X071" "The connection leads to no endpoint";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_section_for_each_kind() {
        let page = include_str!("../../../docs/explain.md");
        let sections = page.lines().filter_map(|line| line.strip_prefix("## X"));
        let sections: Vec<String> = sections.map(|line| format!("X{line}")).collect();
        let kinds = ALL
            .iter()
            .map(|kind| format!("{}: {}", kind.code, kind.title));
        assert_eq!(sections, kinds.collect::<Vec<_>>());
    }
}
