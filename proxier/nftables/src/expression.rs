//! Rules as the kernel's expressions: loads into registers, comparisons, actions.
//!
//! The expressions are those that nft generates. For example, `ip saddr` in a table of family `inet`
//! becomes a comparison of the packet's family and the comparison of the address.

use std::ops::RangeInclusive;
use std::time::Duration;

use netlink::Error;
use netlink::attr::{Attribute, Writer, find};

mod load;

use load::width;

use crate::anonymous::{ANONYMOUS, AnonymousSet};
use crate::rule::{Match, NewMark, Reject, Relation, Rule, Selector, Statement, Verdict, target};
use crate::sys::*;
use crate::value::{KeyBytes, Value};
use net::{Family, Networks};

/// Writes the expressions of a rule without anonymous sets.
pub fn write_plain_rule(writer: &mut Writer<'_>, rule: &Rule) {
    write_rule(writer, rule, &[]);
}

/// Writes the expressions of `rule`.
///
/// `sets` are the rule's [`super::anonymous::anonymous_sets`].
pub(crate) fn write_rule(writer: &mut Writer<'_>, rule: &Rule, sets: &[AnonymousSet]) {
    let mut expressions = Expressions {
        writer,
        sets: sets.iter(),
        family: None,
    };
    for statement in rule.statements() {
        expressions.statement(statement);
    }
}

/// A 32-bit register, counted from 0.
///
/// The kernel has a second numbering, in which four of these are one register of 16 bytes. Its dumps
/// use the second number if possible (`nft_dump_register`), and so does [`Register::number`].
#[derive(Clone, Copy)]
struct Register(u32);

const FIRST: Register = Register(0);
/// The first register after an IPv6 address in [`FIRST`].
const SECOND: Register = Register(4);

impl Register {
    fn number(self) -> u32 {
        match self.0 % 4 {
            0 => 1 + self.0 / 4,
            _ => 8 + self.0,
        }
    }
}

struct Expressions<'a, 'w> {
    writer: &'a mut Writer<'w>,
    /// The anonymous sets that no expression refers to yet.
    sets: std::slice::Iter<'a, AnonymousSet>,
    /// The family with which the rule has compared packets.
    family: Option<Family>,
}

impl Expressions<'_, '_> {
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Match(condition) => self.matches(condition),
            Statement::In { key, set } => {
                self.load_key(key);
                self.lookup(SetName::Named(set), None);
            }
            Statement::VerdictMap { key, map } => {
                self.load_key(key);
                self.lookup(SetName::Named(map), Some(0));
            }
            Statement::SetMark(mark) => self.set_mark(mark),
            Statement::Trace => {
                self.immediate(FIRST, &[1]);
                self.expression("meta", |data| {
                    data.u32_be(NFTA_META_KEY, NFT_META_NFTRACE);
                    data.u32_be(NFTA_META_SREG, FIRST.number());
                });
            }
            Statement::Remember { map, key, data } => {
                self.load(*key, FIRST);
                self.load(*data, SECOND);
                self.update(map, SECOND, None);
            }
            Statement::Learn {
                family,
                map,
                key,
                timeout,
            } => {
                // Before the key, whose registers the comparison would overwrite.
                self.compare_family(*family);
                let target_register = self.load_key(key);
                self.load_from(target_register, &target(*family));
                self.update(map, target_register, Some(*timeout));
            }
            Statement::DestinationNat { family, key, map } => {
                self.load_key(key);
                self.lookup(SetName::Named(map), Some(FIRST.number()));
                let port = Register(FIRST.0 + width(Selector::Destination(*family)));
                self.expression("nat", |data| {
                    data.u32_be(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                    data.u32_be(NFTA_NAT_FAMILY, family_number(*family).into());
                    data.u32_be(NFTA_NAT_REG_ADDR_MIN, FIRST.number());
                    data.u32_be(NFTA_NAT_REG_PROTO_MIN, port.number());
                });
            }
            Statement::Redirect => self.expression("redir", |_| {}),
            Statement::Masquerade { ports } => self.masquerade(ports),
            Statement::SetArpSender(address) => {
                // No checksum is corrected, because ARP messages have none.
                self.immediate(FIRST, &address.octets());
                self.expression("payload", |data| {
                    data.u32_be(NFTA_PAYLOAD_SREG, FIRST.number());
                    data.u32_be(NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER);
                    data.u32_be(NFTA_PAYLOAD_OFFSET, ARP_SENDER);
                    data.u32_be(NFTA_PAYLOAD_LEN, 4);
                });
            }
            Statement::KeepDestination(family) => {
                self.load(Selector::Destination(*family), FIRST);
                self.expression("nat", |data| {
                    data.u32_be(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                    data.u32_be(NFTA_NAT_FAMILY, family_number(*family).into());
                    data.u32_be(NFTA_NAT_REG_ADDR_MIN, FIRST.number());
                });
            }
            Statement::Reject(reject) => self.reject(*reject),
            Statement::Verdict(verdict) => self.expression("immediate", |data| {
                // Register 0 is the verdict.
                data.u32_be(NFTA_IMMEDIATE_DREG, 0);
                data.nested(NFTA_IMMEDIATE_DATA, |data| write_verdict(data, verdict));
            }),
        }
    }

    /// Adds the element with the key in the registers from [`FIRST`] on and the data from `data` on, or renews it.
    fn update(&mut self, map: &str, data: Register, timeout: Option<Duration>) {
        self.expression("dynset", |attributes| {
            attributes.string(NFTA_DYNSET_SET_NAME, map);
            // Not `add`, which would not renew the timeout of a key that the map has already.
            attributes.u32_be(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE);
            attributes.u32_be(NFTA_DYNSET_SREG_KEY, FIRST.number());
            attributes.u32_be(NFTA_DYNSET_SREG_DATA, data.number());
            if let Some(timeout) = timeout {
                let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                attributes.bytes(NFTA_DYNSET_TIMEOUT, &millis.to_be_bytes());
            }
        });
    }

    fn masquerade(&mut self, ports: &RangeInclusive<u16>) {
        self.immediate(FIRST, &ports.start().to_be_bytes());
        self.immediate(SECOND, &ports.end().to_be_bytes());
        // Fully random, as kube-proxy's rules: otherwise two simultaneous connections may get one port, and the
        // kernel drops the packet of the second one.
        let flags = NF_NAT_RANGE_PROTO_SPECIFIED | NF_NAT_RANGE_PROTO_RANDOM_FULLY;
        self.expression("masq", |data| {
            data.u32_be(NFTA_MASQ_FLAGS, flags);
            data.u32_be(NFTA_MASQ_REG_PROTO_MIN, FIRST.number());
            data.u32_be(NFTA_MASQ_REG_PROTO_MAX, SECOND.number());
        });
    }

    fn reject(&mut self, reject: Reject) {
        let (kind, code) = match reject {
            Reject::TcpReset => (NFT_REJECT_TCP_RST, 0),
            Reject::PortUnreachable => (NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_PORT_UNREACH),
        };
        self.expression("reject", |data| {
            data.u32_be(NFTA_REJECT_TYPE, kind);
            data.u8(NFTA_REJECT_ICMP_CODE, code);
        });
    }

    fn matches(&mut self, condition: &Match) {
        match condition {
            Match::Source(relation, networks) => {
                let family = networks.family();
                let selector = Selector::Source(family);
                self.address((selector, Some(source_offset(family))), *relation, networks);
            }
            Match::Destination(networks) => {
                let family = networks.family();
                let selector = Selector::Destination(family);
                let offset = destination_offset(family);
                self.address((selector, Some(offset)), Relation::Is, networks);
            }
            Match::OriginalDestination(networks) => {
                let selector = Selector::OriginalDestination(networks.family());
                self.address((selector, None), Relation::Is, networks);
            }
            Match::Equals(selector, value) => {
                let mut bytes = KeyBytes::new();
                value.encode(&mut bytes);
                self.load(*selector, FIRST);
                self.compare(Relation::Is, &bytes);
            }
            Match::Protocol(protocols) => {
                self.load(Selector::Protocol, FIRST);
                match protocols[..] {
                    [protocol] => self.compare(Relation::Is, &[protocol.number()]),
                    _ => self.lookup(SetName::Anonymous(Relation::Is), None),
                }
            }
            Match::InputInterface(relation, name) => {
                // With its NUL bytes the comparison covers the whole name, not only a prefix.
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(IFNAMSIZ, 0);
                self.load_meta(NFT_META_IIFNAME, FIRST);
                self.compare(*relation, &bytes);
            }
            Match::InputInterfacePrefix(relation, prefix) => {
                self.load_meta(NFT_META_IIFNAME, FIRST);
                self.compare(*relation, prefix.as_bytes());
            }
            Match::New => self.state(NF_CT_STATE_NEW),
            Match::Established => self.state(NF_CT_STATE_ESTABLISHED | NF_CT_STATE_RELATED),
            Match::Reply => {
                self.load_ct(NFT_CT_DIRECTION, FIRST);
                self.compare(Relation::Is, &[IP_CT_DIR_REPLY]);
            }
            Match::Translated => {
                self.load_ct(NFT_CT_STATUS, FIRST);
                self.bitwise(&IPS_DST_NAT.to_ne_bytes(), &[0; 4]);
                self.compare(Relation::IsNot, &[0; 4]);
            }
            Match::Unconfirmed => {
                self.load_ct(NFT_CT_STATUS, FIRST);
                self.bitwise(&IPS_CONFIRMED.to_ne_bytes(), &[0; 4]);
                self.compare(Relation::Is, &[0; 4]);
            }
            // Marks are in host byte order, unlike addresses and ports.
            Match::HasMark(bits) => {
                self.load(Selector::Mark, FIRST);
                self.bitwise(&bits.to_ne_bytes(), &[0; 4]);
                self.compare(Relation::Is, &bits.to_ne_bytes());
            }
            Match::Unmarked => {
                self.load(Selector::Mark, FIRST);
                self.compare(Relation::Is, &[0; 4]);
            }
            Match::SourceIsLocal => self.is_local(NFTA_FIB_F_SADDR),
            Match::DestinationIsLocal => self.is_local(NFTA_FIB_F_DADDR),
            Match::TransparentSocket => {
                self.expression("socket", |data| {
                    data.u32_be(NFTA_SOCKET_KEY, NFT_SOCKET_TRANSPARENT);
                    data.u32_be(NFTA_SOCKET_DREG, FIRST.number());
                });
                self.compare(Relation::Is, &[1]);
            }
            Match::EchoRequest(family) => self.echo_request(*family),
            Match::ArpRequest => {
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, ARP_OPERATION, 2, FIRST);
                self.compare(Relation::Is, &ARPOP_REQUEST.to_be_bytes());
                // Behind hardware addresses of another length, the IP addresses are elsewhere.
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, ARP_HARDWARE_LENGTH, 1, FIRST);
                self.compare(Relation::Is, &[ETH_ALEN]);
            }
        }
    }

    fn echo_request(&mut self, family: Family) {
        let (protocol, kind) = match family {
            Family::V4 => (IPPROTO_ICMP, ICMP_ECHO),
            Family::V6 => (IPPROTO_ICMPV6, ICMPV6_ECHO_REQUEST),
        };
        self.compare_family(family);
        self.load(Selector::Protocol, FIRST);
        self.compare(Relation::Is, &[protocol]);
        self.load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, FIRST);
        self.compare(Relation::Is, &[kind]);
    }

    /// Compares the type of the address that `flags` choose.
    fn is_local(&mut self, flags: u32) {
        self.expression("fib", |data| {
            data.u32_be(NFTA_FIB_DREG, FIRST.number());
            data.u32_be(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
            data.u32_be(NFTA_FIB_FLAGS, flags);
        });
        self.compare(Relation::Is, &RTN_LOCAL.to_ne_bytes());
    }

    /// Compares an address, which begins at `offset` of the network header if it is in the packet.
    fn address(
        &mut self,
        (selector, offset): (Selector, Option<u32>),
        relation: Relation,
        networks: &Networks,
    ) {
        let Some(network) = networks.single() else {
            self.load(selector, FIRST);
            return self.lookup(SetName::Anonymous(relation), None);
        };
        let mut bytes = KeyBytes::new();
        Value::from(network.network()).encode(&mut bytes);
        let length = usize::from(network.prefix_len());
        let whole_bytes = length / 8;
        if let Some(offset) = offset
            && length > 0
            && length % 8 == 0
        {
            // nft loads only the bytes of the prefix.
            self.compare_family(networks.family());
            let length = u32::from(network.prefix_len() / 8);
            self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, length, FIRST);
            return self.compare(relation, &bytes[..whole_bytes]);
        }
        let mut mask = vec![0; bytes.len()];
        mask[..whole_bytes].fill(0xff);
        if let Some(byte) = mask.get_mut(whole_bytes) {
            *byte = !(0xff >> (length % 8));
        }
        self.load(selector, FIRST);
        self.bitwise(&mask, &vec![0; bytes.len()]);
        self.compare(relation, &bytes);
    }

    fn state(&mut self, states: u32) {
        self.load_ct(NFT_CT_STATE, FIRST);
        self.bitwise(&states.to_ne_bytes(), &[0; 4]);
        self.compare(Relation::IsNot, &[0; 4]);
    }

    fn set_mark(&mut self, mark: &NewMark) {
        match mark {
            NewMark::To(mark) => self.immediate(FIRST, &mark.to_ne_bytes()),
            NewMark::With(bits) => {
                self.load(Selector::Mark, FIRST);
                self.bitwise(&(!bits).to_ne_bytes(), &bits.to_ne_bytes());
            }
            NewMark::Without(bits) => {
                self.load(Selector::Mark, FIRST);
                self.bitwise(&(!bits).to_ne_bytes(), &[0; 4]);
            }
            NewMark::Mapped { key, map } => {
                self.load(*key, FIRST);
                self.lookup(SetName::Named(map), Some(FIRST.number()));
            }
        }
        self.expression("meta", |data| {
            data.u32_be(NFTA_META_KEY, NFT_META_MARK);
            data.u32_be(NFTA_META_SREG, FIRST.number());
        });
    }

    fn compare(&mut self, relation: Relation, bytes: &[u8]) {
        let operation = match relation {
            Relation::Is => NFT_CMP_EQ,
            Relation::IsNot => NFT_CMP_NEQ,
        };
        self.expression("cmp", |data| {
            data.u32_be(NFTA_CMP_SREG, FIRST.number());
            data.u32_be(NFTA_CMP_OP, operation);
            data.nested(NFTA_CMP_DATA, |data| data.bytes(NFTA_DATA_VALUE, bytes));
        });
    }

    /// `first = (first & mask) ^ xor`
    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
        self.expression("bitwise", |data| {
            data.u32_be(NFTA_BITWISE_SREG, FIRST.number());
            data.u32_be(NFTA_BITWISE_DREG, FIRST.number());
            data.u32_be(NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR);
            data.u32_be(NFTA_BITWISE_LEN, length);
            data.nested(NFTA_BITWISE_MASK, |data| data.bytes(NFTA_DATA_VALUE, mask));
            data.nested(NFTA_BITWISE_XOR, |data| data.bytes(NFTA_DATA_VALUE, xor));
        });
    }

    fn immediate(&mut self, register: Register, bytes: &[u8]) {
        self.expression("immediate", |data| {
            data.u32_be(NFTA_IMMEDIATE_DREG, register.number());
            data.nested(NFTA_IMMEDIATE_DATA, |data| {
                data.bytes(NFTA_DATA_VALUE, bytes);
            });
        });
    }

    /// Looks up the registers from [`FIRST`] on. `into` gets the data of a map; 0 is the register of
    /// verdicts.
    fn lookup(&mut self, set: SetName<'_>, into: Option<u32>) {
        let anonymous = match set {
            SetName::Anonymous(_) => self.sets.next(),
            SetName::Named(_) => None,
        };
        self.expression("lookup", |data| {
            let name = match set {
                SetName::Named(name) => name,
                SetName::Anonymous(_) => ANONYMOUS,
            };
            data.string(NFTA_LOOKUP_SET, name);
            if let Some(anonymous) = anonymous {
                data.u32_be(NFTA_LOOKUP_SET_ID, anonymous.id);
            }
            data.u32_be(NFTA_LOOKUP_SREG, FIRST.number());
            if let Some(register) = into {
                data.u32_be(NFTA_LOOKUP_DREG, register);
            }
            if let SetName::Anonymous(Relation::IsNot) = set {
                data.u32_be(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
            }
        });
    }

    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Writer<'_>)) {
        self.writer.nested(NFTA_LIST_ELEM, |expression| {
            expression.string(NFTA_EXPR_NAME, name);
            expression.nested(NFTA_EXPR_DATA, data);
        });
    }
}

/// The set in which a lookup takes place.
enum SetName<'a> {
    Named(&'a str),
    /// The rule's next anonymous set. With [`Relation::IsNot`] the rule continues if it lacks the key.
    Anonymous(Relation),
}

// Offsets in an ARP message with hardware addresses of 6 bytes (RFC 826).
const ARP_HARDWARE_LENGTH: u32 = 4;
const ARP_OPERATION: u32 = 6;
const ARP_SENDER: u32 = 14;
const ARP_TARGET: u32 = 24;

fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    }
}

/// Returns the offset of the source address in an IP header. The destination address follows it.
fn source_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 12,
        Family::V6 => 8,
    }
}

fn destination_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 16,
        Family::V6 => 24,
    }
}

/// Reads the verdict in the data of an element; `None` for any other data.
pub fn read_verdict(data: &Attribute<'_>) -> Result<Option<Verdict>, Error> {
    let Some(verdict) = find(data.nested(), NFTA_DATA_VERDICT)? else {
        return Ok(None);
    };
    let part = |kind| find(verdict.nested(), kind);
    let code = part(NFTA_VERDICT_CODE)?;
    let code = code.map(|code| code.u32_be()).transpose()?;
    let chain = part(NFTA_VERDICT_CHAIN)?;
    let chain = chain.map(|chain| chain.string()).transpose()?;
    Ok(match (code.map(u32::cast_signed), chain) {
        (Some(NF_ACCEPT), _) => Some(Verdict::Accept),
        (Some(NF_DROP), _) => Some(Verdict::Drop),
        (Some(NFT_RETURN), _) => Some(Verdict::Return),
        (Some(NFT_JUMP), Some(chain)) => Some(Verdict::Jump(chain.into())),
        (Some(NFT_GOTO), Some(chain)) => Some(Verdict::Goto(chain.into())),
        _ => None,
    })
}

/// Writes a verdict as data of an element or of an expression.
pub(crate) fn write_verdict(writer: &mut Writer<'_>, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Return => (NFT_RETURN, None),
        Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (NFT_GOTO, Some(chain)),
    };
    writer.nested(NFTA_DATA_VERDICT, |data| {
        data.u32_be(NFTA_VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            data.string(NFTA_VERDICT_CHAIN, chain);
        }
    });
}
