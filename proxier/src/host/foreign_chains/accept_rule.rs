//! The bytes of our rule:
//!
//! * `ct direction reply ct state established,related accept` for answers of endpoints,
//! * `meta mark & MARK == MARK accept` for packets that our table marked.

use netlink::attr::{Attribute, Writer, find};
use netlink::{Error, Refusal};
use rustix::io::Errno;

use super::accepted::{Accepted, Author};
use super::chain::ForeignChain;
use super::report::DropCause;
use crate::host::xt;
use nftables::raw::contents;
use nftables::raw::{read_verdict, write_plain_rule};
use nftables::sys::*;
use nftables::{Match, Rule, Verdict};

/// The expressions of which a rule consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// As nft writes them.
    Nft,
    /// As iptables-nft writes them. It cannot read a table with other expressions.
    Iptables,
}

/// Calls `insert` with the best syntax for `chain`. Returns the kernel's refusal, if any.
///
/// A rule in nft's syntax makes iptables fail on its own table. Such a rule goes into iptables' table
/// only if the kernel lacks iptables' extensions: then iptables does not work in any case.
pub(super) fn insert_best(
    chain: &ForeignChain,
    mut insert: impl FnMut(Syntax) -> Result<Option<Refusal>, Error>,
) -> Result<Option<Refusal>, Error> {
    if chain.iptables_program().is_none() {
        return insert(Syntax::Nft);
    }
    match insert(Syntax::Iptables)? {
        Some(refusal) if [Errno::NOENT, Errno::OPNOTSUPP].contains(&refusal.errno) => {
            Ok(insert(Syntax::Nft)?.and(Some(refusal)))
        }
        result => Ok(result),
    }
}

/// Writes the expressions and the comment of our rule.
pub(super) fn write(writer: &mut Writer<'_>, accepted: Accepted, syntax: Syntax) {
    writer.nested(NFTA_RULE_EXPRESSIONS, |expressions| {
        let accept = Verdict::Accept.into();
        let rule = match (syntax, accepted) {
            (Syntax::Nft, Accepted::Answers) => {
                Rule::new([Match::Reply.into(), Match::Established.into(), accept])
            }
            (Syntax::Nft, Accepted::Marked { mark }) => {
                Rule::new([Match::HasMark(mark).into(), accept])
            }
            (Syntax::Iptables, _) => {
                write_iptables_match(expressions, accepted);
                xt::write_comment(expressions, &accepted.comment());
                Rule::new([accept])
            }
        };
        write_plain_rule(expressions, &rule);
    });
    if syntax == Syntax::Nft {
        writer.bytes(NFTA_RULE_USERDATA, &userdata(accepted));
    }
}

fn write_iptables_match(expressions: &mut Writer<'_>, accepted: Accepted) {
    match accepted {
        Accepted::Answers => {
            xt::write_match(expressions, "conntrack", CONNTRACK_REVISION, &conntrack());
        }
        Accepted::Marked { mark: value } => {
            xt::write_match(expressions, "mark", MARK_REVISION, &mark(value));
        }
    }
}

/// Returns the author of the rule in a message; `None` for rules without a comment of ours.
pub(crate) fn author(payload: &[u8]) -> Option<Author> {
    let mut attributes = contents(payload).map_while(Result::ok);
    attributes.find_map(|attribute| match attribute.kind {
        NFTA_RULE_USERDATA => match attribute.value {
            [NFTNL_UDATA_RULE_COMMENT, _, comment @ ..] => author_of(comment),
            _ => None,
        },
        NFTA_RULE_EXPRESSIONS => {
            let mut expressions = attribute.nested().map_while(Result::ok);
            expressions.find_map(|expression| author_of(match_info(&expression)?))
        }
        _ => None,
    })
}

/// Returns the author with this `comment`, which ends at its first NUL.
fn author_of(comment: &[u8]) -> Option<Author> {
    let text = comment.split(|byte| *byte == 0).next()?;
    Author::of(std::str::from_utf8(text).ok()?)
}

/// Returns why the chain drops if the rule in this message is its last one; `None` if it does not.
///
/// The rule drops or rejects every packet: before its verdict it only counts or logs.
pub(super) fn final_drop(payload: &[u8]) -> Option<DropCause> {
    let expressions = find(contents(payload), NFTA_RULE_EXPRESSIONS).ok()??;
    let mut drops = false;
    for expression in expressions.nested() {
        let expression = expression.ok()?;
        let name = find(expression.nested(), NFTA_EXPR_NAME).ok()??;
        let data = find(expression.nested(), NFTA_EXPR_DATA).ok()?;
        drops = match name.string().ok()? {
            "counter" | "log" => drops,
            "match" if extension_name(data.as_ref()?, NFTA_MATCH_NAME)? == "comment" => drops,
            "reject" => true,
            // iptables' REJECT. Its DROP is an immediate verdict.
            "target" => extension_name(data.as_ref()?, NFTA_TARGET_NAME)? == "REJECT",
            "immediate" => {
                let verdict = find(data?.nested(), NFTA_IMMEDIATE_DATA).ok()??;
                read_verdict(&verdict).ok()? == Some(Verdict::Drop)
            }
            _ => return None,
        };
    }
    drops.then_some(DropCause::LastRule)
}

/// Returns the name of the iptables extension of an expression with this data.
fn extension_name<'a>(data: &Attribute<'a>, kind: u16) -> Option<&'a str> {
    find(data.nested(), kind).ok()??.string().ok()
}

/// Returns the data of an iptables extension. In other expressions, these bytes are not a comment.
fn match_info<'a>(expression: &Attribute<'a>) -> Option<&'a [u8]> {
    let data = find(expression.nested(), NFTA_EXPR_DATA).ok()??;
    let info = find(data.nested(), NFTA_MATCH_INFO).ok()??;
    Some(info.value)
}

/// The comment as nft stores it with a rule: kind, length, text and NUL.
fn userdata(accepted: Accepted) -> Vec<u8> {
    let comment = accepted.comment();
    let text = comment.as_bytes();
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[NFTNL_UDATA_RULE_COMMENT, length], text, &[0]].concat()
}

/// `enum nftnl_udata_rule_types` of libnftnl.
const NFTNL_UDATA_RULE_COMMENT: u8 = 0;

/// `-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY`: `struct xt_conntrack_mtinfo3` of
/// linux/netfilter/xt_conntrack.h, padded as by iptables.
fn conntrack() -> [u8; 168] {
    const MATCH_FLAGS: usize = 146;
    const INVERT_FLAGS: usize = 148;
    const STATE_MASK: usize = 150;
    const XT_CONNTRACK_STATE: u16 = 1 << 0;
    const XT_CONNTRACK_DIRECTION: u16 = 1 << 12;
    // `XT_CONNTRACK_STATE_BIT`
    const ESTABLISHED: u16 = 1 << 1;
    const RELATED: u16 = 1 << 2;
    let mut info = [0; 168];
    for (offset, value) in [
        (MATCH_FLAGS, XT_CONNTRACK_STATE | XT_CONNTRACK_DIRECTION),
        // Without inversion the extension matches the original direction.
        (INVERT_FLAGS, XT_CONNTRACK_DIRECTION),
        (STATE_MASK, ESTABLISHED | RELATED),
    ] {
        info[offset..offset + 2].copy_from_slice(&value.to_ne_bytes());
    }
    info
}

/// The revision with `struct xt_conntrack_mtinfo3`.
const CONNTRACK_REVISION: u32 = 3;

/// `-m mark --mark VALUE/VALUE`: `struct xt_mark_mtinfo1` of linux/netfilter/xt_mark.h, padded as by
/// iptables.
fn mark(value: u32) -> [u8; 16] {
    let mut info = [0; 16];
    info[..4].copy_from_slice(&value.to_ne_bytes());
    info[4..8].copy_from_slice(&value.to_ne_bytes());
    info
}

/// The revision with `struct xt_mark_mtinfo1`.
const MARK_REVISION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::super::chain::ForeignHook;
    use super::*;

    #[test]
    fn nft_syntax_goes_into_iptables_chains_only_without_its_extensions() {
        use Syntax::{Iptables, Nft};

        let forward = ForeignHook::Forward;
        let of_iptables = ForeignChain::new(forward, "ip", "filter", "FORWARD");
        let of_nft = ForeignChain::new(forward, "inet", "filter", "forward");
        for (chain, refused, expected) in [
            (&of_nft, None, &[Nft][..]),
            (&of_nft, Some((Nft, Errno::NOENT)), &[Nft]),
            (&of_iptables, None, &[Iptables]),
            (
                &of_iptables,
                Some((Iptables, Errno::NOENT)),
                &[Iptables, Nft],
            ),
            (
                &of_iptables,
                Some((Iptables, Errno::OPNOTSUPP)),
                &[Iptables, Nft],
            ),
            (&of_iptables, Some((Iptables, Errno::NOMEM)), &[Iptables]),
            (&of_iptables, Some((Iptables, Errno::INTR)), &[Iptables]),
            (&of_iptables, Some((Iptables, Errno::AGAIN)), &[Iptables]),
            (&of_iptables, Some((Iptables, Errno::BUSY)), &[Iptables]),
            (&of_iptables, Some((Iptables, Errno::PERM)), &[Iptables]),
            (&of_iptables, Some((Iptables, Errno::INVAL)), &[Iptables]),
        ] {
            let mut tried = Vec::new();
            let result = insert_best(chain, |syntax| {
                tried.push(syntax);
                let refused = refused.filter(|(which, _)| *which == syntax);
                Ok(refused.map(|(_, errno)| Refusal {
                    errno,
                    detail: None,
                }))
            });
            assert_eq!(tried, expected, "{chain}, {refused:?}");
            let is_inserted = refused.is_none() || tried.len() > 1;
            assert_eq!(
                result.unwrap().is_none(),
                is_inserted,
                "{chain}, {refused:?}"
            );
        }
    }

    /// The end of the data that `iptables -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED
    /// --ctdir REPLY -j ACCEPT` (1.8.9) sends; the rest is 0.
    #[cfg(target_endian = "little")]
    const RECORDED: [u8; 22] = [
        0x01, 0x10, 0x00, 0x10, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    #[cfg(target_endian = "little")]
    fn the_bytes_are_those_of_iptables() {
        let bytes = conntrack();
        let (zeros, rest) = bytes.split_at(bytes.len() - RECORDED.len());
        assert!(zeros.iter().all(|byte| *byte == 0));
        assert_eq!(rest, RECORDED);
    }
}
