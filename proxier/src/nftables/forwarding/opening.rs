//! The rule that lets answers pass: `ct direction reply ct state established,related accept`.

use ipvs_netlink::attr::{Attribute, Writer, find};
use ipvs_netlink::{Error, Refusal};
use rustix::io::Errno;

use super::chain::ForwardChain;
use super::extension::{REVISION, conntrack};
use crate::nftables::expression::write_rule;
use crate::nftables::message::contents;
use crate::nftables::rule::{Match, Rule, Verdict};
use crate::nftables::sys::*;

/// By this our rules are known among those of others.
const COMMENT: &str = "ipvs-proxier: answers of endpoints";

/// What a rule looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// As nft writes it.
    Nft,
    /// As iptables writes it, which understands nothing else.
    Iptables,
}

/// Has `put` try to give `chain` our rule. Answers why the kernel did not want it, if it did not.
///
/// Any rule in nft's dialect would keep iptables from its own table. So it comes into question only
/// where the kernel lacks iptables' extensions, and iptables is of no use to anybody.
pub(super) fn put_best(
    chain: &ForwardChain,
    mut put: impl FnMut(Dialect) -> Result<Option<Refusal>, Error>,
) -> Result<Option<Refusal>, Error> {
    if chain.program().is_none() {
        return put(Dialect::Nft);
    }
    match put(Dialect::Iptables)? {
        Some(refusal) if [Errno::NOENT, Errno::OPNOTSUPP].contains(&refusal.errno) => {
            Ok(put(Dialect::Nft)?.and(Some(refusal)))
        }
        result => Ok(result),
    }
}

/// Writes our rule for `chain`.
pub(super) fn write(writer: &mut Writer<'_>, chain: &ForwardChain, dialect: Dialect) {
    writer.string(NFTA_RULE_TABLE, chain.table());
    writer.string(NFTA_RULE_CHAIN, chain.name());
    writer.nested(NFTA_RULE_EXPRESSIONS, |expressions| {
        let accept = Verdict::Accept.into();
        let rule = match dialect {
            Dialect::Nft => Rule::new([Match::Reply.into(), Match::Established.into(), accept]),
            Dialect::Iptables => {
                write_extension(expressions, "conntrack", REVISION, &conntrack());
                write_extension(expressions, "comment", 0, &comment());
                Rule::new([accept])
            }
        };
        write_rule(expressions, &rule, &[]);
    });
    if dialect == Dialect::Nft {
        writer.bytes(NFTA_RULE_USERDATA, &userdata());
    }
}

/// Whether a message is about a rule of ours.
pub(in crate::nftables) fn is_ours(payload: &[u8]) -> bool {
    let mut attributes = contents(payload).map_while(Result::ok);
    attributes.any(|attribute| match attribute.kind {
        NFTA_RULE_USERDATA => attribute.value == userdata(),
        NFTA_RULE_EXPRESSIONS => has_comment(&attribute).unwrap_or(false),
        _ => false,
    })
}

/// Whether one of `expressions` is [`COMMENT`] as iptables writes it.
fn has_comment(expressions: &Attribute<'_>) -> Result<bool, Error> {
    for expression in expressions.nested() {
        let Some(data) = find(expression?.nested(), NFTA_EXPR_DATA)? else {
            continue;
        };
        // No other expression has such a value there.
        let info = find(data.nested(), NFTA_MATCH_INFO)?;
        let rest = info.and_then(|info| info.value.strip_prefix(COMMENT.as_bytes()));
        if rest.is_some_and(|rest| rest.starts_with(&[0])) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The comment as nft leaves it with a rule (libnftnl's `NFTNL_UDATA_RULE_COMMENT`): kind, length,
/// text and NUL.
fn userdata() -> Vec<u8> {
    let text = COMMENT.as_bytes();
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[0, length], text, &[0]].concat()
}

/// The comment as iptables does: `struct xt_comment_info` of linux/netfilter/xt_comment.h.
fn comment() -> Vec<u8> {
    let mut info = COMMENT.as_bytes().to_vec();
    info.resize(XT_MAX_COMMENT_LEN, 0);
    info
}

const XT_MAX_COMMENT_LEN: usize = 256;

/// Writes a comparison by one of iptables' extensions.
fn write_extension(expressions: &mut Writer<'_>, name: &str, revision: u32, info: &[u8]) {
    expressions.nested(NFTA_LIST_ELEM, |expression| {
        expression.string(NFTA_EXPR_NAME, "match");
        expression.nested(NFTA_EXPR_DATA, |data| {
            data.string(NFTA_MATCH_NAME, name);
            data.u32_be(NFTA_MATCH_REV, revision);
            data.bytes(NFTA_MATCH_INFO, info);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_writes_where_iptables_cannot_and_nowhere_else_of_its_own() {
        use Dialect::{Iptables, Nft};

        let of_iptables = ForwardChain::new(NFPROTO_IPV4, "filter", "FORWARD");
        let of_nft = ForwardChain::new(NFPROTO_INET, "filter", "forward");
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
            let result = put_best(chain, |dialect| {
                tried.push(dialect);
                let refused = refused.filter(|(which, _)| *which == dialect);
                Ok(refused.map(|(_, errno)| Refusal {
                    errno,
                    detail: None,
                }))
            });
            assert_eq!(tried, expected, "{chain}, {refused:?}");
            let is_in = refused.is_none() || tried.len() > 1;
            assert_eq!(result.unwrap().is_none(), is_in, "{chain}, {refused:?}");
        }
    }
}
