//! Comparisons of packets by iptables' extension `conntrack`, and by `state`, which it replaced.

/// The revision of `conntrack` that is written here; 1 and 2 are read, too.
pub(super) const REVISION: u32 = 3;

// `struct xt_conntrack_mtinfo3` of linux/netfilter/xt_conntrack.h: its length as iptables pads it, and
// where its fields are that say what is compared. In `mtinfo1` the mask of states is a byte.
const MTINFO3: usize = 168;
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
const XT_CONNTRACK_STATE: u16 = 1 << 0;
const XT_CONNTRACK_DIRECTION: u16 = 1 << 12;
/// Says only that iptables is to list it as `-m state`.
const XT_CONNTRACK_STATE_ALIAS: u16 = 1 << 13;
// `XT_CONNTRACK_STATE_BIT`, and `XT_STATE_BIT` of linux/netfilter/xt_state.h.
const ESTABLISHED: u16 = 1 << 1;
const RELATED: u16 = 1 << 2;

/// `-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY`
pub(super) fn conntrack() -> [u8; MTINFO3] {
    let mut info = [0; MTINFO3];
    for (place, value) in [
        (MATCH_FLAGS, XT_CONNTRACK_STATE | XT_CONNTRACK_DIRECTION),
        // The other direction than that of the first packet.
        (INVERT_FLAGS, XT_CONNTRACK_DIRECTION),
        (STATE_MASK, ESTABLISHED | RELATED),
    ] {
        info[place..place + 2].copy_from_slice(&value.to_ne_bytes());
    }
    info
}

/// Whether the extension is sure to match all packets of established connections
/// (`conntrack_mt` and `state_mt` of Linux 6.1). What else it asks for is not looked into.
pub(super) fn is_for_established(name: &str, revision: u32, info: &[u8]) -> bool {
    let word = |place| {
        let bytes = info.get(place..).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| u16::from_ne_bytes(*bytes))
    };
    let states = match (name, revision) {
        ("comment", _) => return true,
        ("state", 0) => info.first_chunk().map(|it| u32::from_ne_bytes(*it)),
        ("conntrack", 1..=3) => {
            let flags = word(MATCH_FLAGS).map(|flags| flags & !XT_CONNTRACK_STATE_ALIAS);
            if (flags, word(INVERT_FLAGS)) != (Some(XT_CONNTRACK_STATE), Some(0)) {
                return false;
            }
            match revision {
                1 => info.get(STATE_MASK).map(|&states| states.into()),
                _ => word(STATE_MASK).map(u32::from),
            }
        }
        _ => None,
    };
    states.is_some_and(|states| states & u32::from(ESTABLISHED) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of the expressions that `iptables -I FORWARD -m conntrack --ctstate
    /// RELATED,ESTABLISHED --ctdir REPLY -j ACCEPT` (1.8.9) sends, less what is 0 at the begin.
    const RECORDED: [u8; 22] = [
        0x01, 0x10, 0x00, 0x10, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    #[cfg(target_endian = "little")]
    fn the_bytes_are_those_of_iptables() {
        let bytes = conntrack();
        let (zeros, rest) = bytes.split_at(MTINFO3 - RECORDED.len());
        assert!(zeros.iter().all(|byte| *byte == 0));
        assert_eq!(rest, RECORDED);
    }

    #[test]
    fn every_revision_is_read_and_nothing_else() {
        let info = |matched: u16, inverted: u16, states: u16| {
            let mut info = conntrack();
            for (place, value) in [
                (MATCH_FLAGS, matched),
                (INVERT_FLAGS, inverted),
                (STATE_MASK, states),
            ] {
                info[place..place + 2].copy_from_slice(&value.to_ne_bytes());
            }
            info
        };
        let alias = XT_CONNTRACK_STATE | XT_CONNTRACK_STATE_ALIAS;
        let further = XT_CONNTRACK_STATE | 1 << 1;
        for (info, expected) in [
            (info(XT_CONNTRACK_STATE, 0, ESTABLISHED | RELATED), true),
            (info(alias, 0, ESTABLISHED), true),
            (info(XT_CONNTRACK_STATE, 0, RELATED), false),
            (info(XT_CONNTRACK_STATE, 0, 1 << 3 | 1 << 7), false),
            (info(XT_CONNTRACK_STATE, 1, ESTABLISHED), false),
            (info(further, 0, ESTABLISHED), false),
            (info(0, 0, ESTABLISHED), false),
            (conntrack(), false),
        ] {
            for revision in [2, 3] {
                assert_eq!(
                    is_for_established("conntrack", revision, &info),
                    expected,
                    "{:?}",
                    &info[MATCH_FLAGS..]
                );
            }
        }
        let mut byte = info(XT_CONNTRACK_STATE, 0, 0);
        byte[STATE_MASK] = 1 << 1;
        assert!(is_for_established("conntrack", 1, &byte[..152]));
        byte[STATE_MASK..STATE_MASK + 2].copy_from_slice(&[1 << 2, 1 << 1]);
        assert!(!is_for_established("conntrack", 1, &byte[..152]));

        let whole = info(XT_CONNTRACK_STATE, 0, ESTABLISHED);
        for revision in [0, 4] {
            assert!(!is_for_established("conntrack", revision, &whole));
        }
        for length in [0, MATCH_FLAGS, STATE_MASK, STATE_MASK + 1] {
            assert!(!is_for_established("conntrack", 3, &whole[..length]));
        }
        assert!(is_for_established("state", 0, &6_u32.to_ne_bytes()));
        assert!(!is_for_established("state", 0, &8_u32.to_ne_bytes()));
        assert!(!is_for_established("state", 0, &[6, 6]));
        assert!(is_for_established("comment", 0, b"allowed"));
        assert!(!is_for_established("multiport", 1, &whole));
    }
}
