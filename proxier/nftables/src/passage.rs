//! What a table does with the first packet of a connection, computed without the kernel.
//!
//! The packet is of TCP, UDP or SCTP. Elements that packets add (learned marks and targets) count as absent.

use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::key::Key;
use crate::rule::{Match, NewMark, Relation, Selector, Statement, Verdict};
use crate::table::{Chain, Hook, Table};
use crate::value::Value;
use net::{Family, Protocol};

/// The kernel's limit of jumps inside jumps (`NFT_JUMP_STACK_SIZE`).
const MOST_JUMPS: usize = 16;

/// The first packet of a connection, on its way through the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its transport protocol.
    pub protocol: Protocol,
    /// Its source.
    pub source: SocketAddr,
    /// Its destination, which destination NAT changes.
    pub destination: SocketAddr,
    /// The name of its input interface; empty if this machine sends it.
    pub input: Arc<str>,
    /// Whether its source is an address of this machine.
    pub source_is_local: bool,
    /// Whether its destination before destination NAT is an address of this machine.
    pub destination_is_local: bool,
    /// Its mark.
    pub mark: u32,
    /// Its destination before destination NAT, if a rule changed it.
    pub original: Option<SocketAddr>,
    /// Whether a rule gives it another source.
    pub is_masqueraded: bool,
    /// Which of the numbers the rules draw that choose at random or by hash.
    pub draw: u32,
    /// The most numbers from which a rule chose, at least 1.
    pub choices: u32,
}

impl Packet {
    /// Returns a packet that arrives from `input`, or that this machine sends if the name is empty.
    pub fn new(
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
        input: &str,
    ) -> Self {
        Self {
            protocol,
            source,
            destination,
            input: input.into(),
            source_is_local: input.is_empty(),
            destination_is_local: false,
            mark: 0,
            original: None,
            is_masqueraded: false,
            draw: 0,
            choices: 1,
        }
    }
}

/// The places in the packet path where the chains of a table of family `inet` run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before routing.
    Prerouting,
    /// On the way to this machine.
    Input,
    /// On the way from this machine.
    Output,
    /// After routing.
    Postrouting,
}

/// The end of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Dropped by a rule of the chain with this name.
    Dropped(Arc<str>),
    /// Rejected by a rule of the chain with this name: its source receives an error.
    Rejected(Arc<str>),
}

/// The end of a chain for a packet.
enum Leaving {
    /// No rule decided.
    Returned,
    Accepted,
    /// A rule of NAT decided: no further NAT chain runs at this place.
    Translated,
    Ended(End),
}

/// The result of a statement.
enum Step {
    /// The next statement follows.
    Next,
    /// The next rule follows.
    NoMatch,
    Verdict(Verdict),
    Leave(Leaving),
}

impl Table {
    /// Passes `packet` through the chains at `place` whose priorities are in `priorities`, and changes it as they do.
    /// Returns its end, if a chain ends it.
    ///
    /// NAT chains count with the priority of the kernel's NAT, as [`Hook::NatPrerouting`] says.
    pub fn pass(
        &self,
        place: Place,
        priorities: impl RangeBounds<i32>,
        packet: &mut Packet,
    ) -> Option<End> {
        let at_place = |chain: &'_ Chain| {
            let (at, order) = chain.hook.and_then(position)?;
            let is_here = at == place && priorities.contains(&order.0);
            is_here.then_some(order)
        };
        let chains = self.chains.values();
        let mut chains: Vec<_> = chains
            .filter_map(|chain| Some((at_place(chain)?, chain)))
            .collect();
        chains.sort_by_key(|(order, _)| *order);
        let mut is_translated = false;
        for (_, chain) in chains {
            let is_nat = chain.hook.is_some_and(is_nat);
            if is_nat && is_translated {
                continue;
            }
            match self.run(chain, packet, 0) {
                Leaving::Returned | Leaving::Accepted => {}
                Leaving::Translated => is_translated = true,
                Leaving::Ended(end) => return Some(end),
            }
        }
        None
    }

    fn run(&self, chain: &Chain, packet: &mut Packet, depth: usize) -> Leaving {
        let next = |name: &Arc<str>| self.chains.get(name).filter(|_| depth < MOST_JUMPS);
        for rule in &chain.rules {
            for statement in rule.statements() {
                let left = match self.step(statement, &chain.name, packet) {
                    Step::Next => continue,
                    Step::NoMatch => break,
                    Step::Leave(leaving) => leaving,
                    Step::Verdict(Verdict::Accept) => Leaving::Accepted,
                    Step::Verdict(Verdict::Drop) => {
                        Leaving::Ended(End::Dropped(chain.name.clone()))
                    }
                    Step::Verdict(Verdict::Return) => Leaving::Returned,
                    Step::Verdict(Verdict::Goto(name)) => match next(&name) {
                        Some(next) => self.run(next, packet, depth),
                        None => Leaving::Returned,
                    },
                    Step::Verdict(Verdict::Jump(name)) => {
                        let left = next(&name).map(|next| self.run(next, packet, depth + 1));
                        match left {
                            None | Some(Leaving::Returned) => break,
                            Some(left) => left,
                        }
                    }
                };
                return left;
            }
        }
        Leaving::Returned
    }

    fn step(&self, statement: &Statement, chain: &Arc<str>, packet: &mut Packet) -> Step {
        let matched = |is_matched: bool| match is_matched {
            true => Step::Next,
            false => Step::NoMatch,
        };
        match statement {
            Statement::Match(condition) => matched(packet.matches(condition)),
            Statement::In { key, set } => {
                let key = packet.key(key);
                matched(key.is_some_and(|key| self.has_element(set, &key)))
            }
            Statement::VerdictMap { key, map } => {
                let found = packet.key(key).and_then(|key| {
                    let verdict = self.sets.get(map)?.verdict(&key)?;
                    Some(verdict.clone())
                });
                found.map_or(Step::NoMatch, Step::Verdict)
            }
            Statement::SetMark(mark) => {
                packet.mark = match mark {
                    NewMark::To(mark) => *mark,
                    NewMark::With(bits) => packet.mark | bits,
                    NewMark::Without(bits) => packet.mark & !bits,
                    // Only packets add elements to the map.
                    NewMark::Mapped { .. } => return Step::NoMatch,
                };
                Step::Next
            }
            Statement::Masquerade { .. } => {
                packet.is_masqueraded = true;
                Step::Leave(Leaving::Translated)
            }
            Statement::KeepDestination(family) if packet.is_of(*family) => {
                Step::Leave(Leaving::Translated)
            }
            Statement::KeepDestination(_) => Step::NoMatch,
            Statement::DestinationNat { key, map, .. } => {
                let target = packet.key(key).and_then(|key| {
                    let map = self.sets.get(map)?;
                    map.target(&key)
                });
                let Some(target) = target else {
                    return Step::NoMatch;
                };
                packet.original.get_or_insert(packet.destination);
                packet.destination = target;
                Step::Leave(Leaving::Translated)
            }
            Statement::Redirect => Step::Leave(Leaving::Translated),
            Statement::Reject(_) => Step::Leave(Leaving::Ended(End::Rejected(chain.clone()))),
            Statement::Verdict(verdict) => Step::Verdict(verdict.clone()),
            Statement::Remember { .. }
            | Statement::Learn { .. }
            | Statement::SetArpSender(_)
            | Statement::Trace => Step::Next,
        }
    }
}

impl Packet {
    fn is_of(&self, family: Family) -> bool {
        Family::from(self.destination.ip()) == family
    }

    /// Returns whether a condition holds for it.
    pub fn matches(&self, condition: &Match) -> bool {
        let is = |relation: &Relation, holds: bool| holds == (*relation == Relation::Is);
        match condition {
            Match::Source(relation, networks) => {
                let source = self.source.ip();
                networks.family() == source.into() && is(relation, networks.contains(source))
            }
            Match::Destination(networks) => networks.contains(self.destination.ip()),
            Match::OriginalDestination(networks) => {
                networks.contains(self.original.unwrap_or(self.destination).ip())
            }
            Match::Equals(selector, value) => self.clone().value(*selector) == Some(*value),
            Match::Protocol(protocols) => protocols.contains(&self.protocol),
            Match::InputInterface(relation, name) => is(relation, self.input == *name),
            Match::InputInterfacePrefix(relation, prefix) => {
                is(relation, self.input.starts_with(&**prefix))
            }
            Match::New | Match::Unconfirmed => true,
            Match::Translated => self.original.is_some(),
            Match::HasMark(bits) => self.mark & bits == *bits,
            Match::Unmarked => self.mark == 0,
            Match::SourceIsLocal => self.source_is_local,
            Match::DestinationIsLocal => self.destination_is_local,
            Match::Established
            | Match::Reply
            | Match::TransparentSocket
            | Match::EchoRequest(_)
            | Match::ArpRequest => false,
        }
    }

    fn key(&mut self, selectors: &[Selector]) -> Option<Key> {
        let parts: Option<Vec<Value>> = selectors.iter().map(|it| self.value(*it)).collect();
        parts.map(Key::new)
    }

    fn value(&mut self, selector: Selector) -> Option<Value> {
        let original = self.original.unwrap_or(self.destination);
        let of = |family: Family, address: SocketAddr| {
            (Family::from(address.ip()) == family).then_some(address.ip().into())
        };
        match selector {
            Selector::Source(family) | Selector::OriginalSource(family) => of(family, self.source),
            Selector::Destination(family) => of(family, self.destination),
            Selector::OriginalDestination(family) => of(family, original),
            Selector::Protocol => Some(Value::Protocol(self.protocol)),
            Selector::DestinationPort => Some(Value::Port(self.destination.port())),
            Selector::OriginalDestinationPort => Some(Value::Port(original.port())),
            Selector::TcpDestinationPort => {
                (self.protocol == Protocol::Tcp).then_some(Value::Port(self.destination.port()))
            }
            Selector::Mark => Some(Value::Mark(self.mark)),
            Selector::Number(number) => Some(Value::Mark(number)),
            Selector::Random { count, first } => self.draw(count, first),
            Selector::SourceHash {
                family,
                count,
                first,
                ..
            } => self.is_of(family).then(|| self.draw(count, first))?,
            Selector::OutputInterface
            | Selector::ConnectionId
            | Selector::ArpSender
            | Selector::ArpTarget => None,
        }
    }

    fn draw(&mut self, count: u32, first: u32) -> Option<Value> {
        self.choices = self.choices.max(count);
        Some(Value::Mark(first + self.draw.checked_rem(count)?))
    }
}

/// Returns where the chains of a hook run: the place, and their order there.
fn position(hook: Hook) -> Option<(Place, (i32, i32))> {
    let own = hook.priority();
    Some(match hook {
        Hook::Prerouting(_) => (Place::Prerouting, (own, own)),
        Hook::Input(_) => (Place::Input, (own, own)),
        Hook::Output(_) => (Place::Output, (own, own)),
        Hook::Postrouting(_) => (Place::Postrouting, (own, own)),
        Hook::NatPrerouting(_) => (Place::Prerouting, (-100, own)),
        Hook::NatOutput(_) => (Place::Output, (-100, own)),
        Hook::NatPostrouting(_) => (Place::Postrouting, (100, own)),
        // Its chains mark packets for those of other programs only.
        Hook::Forward(_) | Hook::ArpInput | Hook::ArpOutput => return None,
    })
}

fn is_nat(hook: Hook) -> bool {
    matches!(
        hook,
        Hook::NatPrerouting(_) | Hook::NatOutput(_) | Hook::NatPostrouting(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Reject, Rule};
    use crate::set::{Element, Set, SetKind};
    use crate::value::KeyType;

    fn packet() -> Packet {
        let (source, destination) = ("10.0.0.9:1024", "10.96.0.1:80");
        let [source, destination] = [source, destination].map(|it| it.parse().unwrap());
        Packet::new(Protocol::Tcp, source, destination, "eth0")
    }

    fn jump(name: &str) -> Rule {
        Rule::new([Verdict::Jump(name.into()).into()])
    }

    #[test]
    fn a_jump_returns_and_a_goto_does_not() {
        let mark = |bits| Statement::SetMark(NewMark::With(bits));
        let mut table = Table::default();
        let first = [jump("called"), Rule::new([mark(2)])];
        table.add_chain(Chain::at("first", Hook::Input(0), first));
        let goto = Rule::new([Verdict::Goto("called".into()).into()]);
        table.add_chain(Chain::at(
            "second",
            Hook::Input(1),
            [goto, Rule::new([mark(4)])],
        ));
        table.add_chain(Chain::new("called", [Rule::new([mark(1)])]));
        let mut packet = packet();
        assert_eq!(table.pass(Place::Input, .., &mut packet), None);
        assert_eq!(packet.mark, 3);
    }

    #[test]
    fn chains_run_by_priority_until_one_ends_the_packet() {
        let mut table = Table::default();
        let reject = Rule::new([Statement::Reject(Reject::TcpReset)]);
        table.add_chain(Chain::at("a", Hook::Input(5), [reject]));
        let drop = Rule::new([Verdict::Drop.into()]);
        table.add_chain(Chain::at("b", Hook::Input(-5), [drop]));
        let mut packet = packet();
        let end = table.pass(Place::Input, .., &mut packet);
        assert_eq!(end, Some(End::Dropped("b".into())));
        let end = table.pass(Place::Input, 0.., &mut packet);
        assert_eq!(end, Some(End::Rejected("a".into())));
        assert_eq!(table.pass(Place::Output, .., &mut packet), None);
    }

    #[test]
    fn a_map_translates_by_the_drawn_number() {
        let key = [Selector::Random { count: 2, first: 0 }];
        let mut map = Set::new("m", [KeyType::Mark], SetKind::Targets(Family::V4));
        for number in 0..2 {
            let target = SocketAddr::from(([10, 1, 0, 1], 8080 + number));
            map.insert_target(Key::new([Value::Mark(number.into())]), target);
        }
        let mut table = Table::default();
        table.add_set(map);
        let nat = Rule::new([Statement::DestinationNat {
            family: Family::V4,
            key: key.into(),
            map: "m".into(),
        }]);
        table.add_chain(Chain::at("nat", Hook::NatPrerouting(-102), [nat]));
        let drop = Rule::new([Verdict::Drop.into()]);
        table.add_chain(Chain::at("later", Hook::NatPrerouting(-101), [drop]));
        for draw in 0..2 {
            let mut packet = Packet { draw, ..packet() };
            assert_eq!(table.pass(Place::Prerouting, .., &mut packet), None);
            assert_eq!(u32::from(packet.destination.port()), 8080 + draw);
            assert_eq!(packet.original, Some(self::packet().destination));
            assert_eq!(packet.choices, 2);
        }
    }

    #[test]
    fn an_element_decides_by_the_packets_key() {
        let mut map = Set::new("guarded", [KeyType::Port], SetKind::Verdicts);
        map.insert(Element {
            key: Key::new([Value::Port(80)]),
            verdict: Some(Verdict::Drop),
        });
        let mut table = Table::default();
        table.add_set(map);
        let lookup = Rule::new([Statement::VerdictMap {
            key: [Selector::DestinationPort].into(),
            map: "guarded".into(),
        }]);
        table.add_chain(Chain::at("guard", Hook::Input(0), [lookup]));
        let mut packet = packet();
        assert!(table.pass(Place::Input, .., &mut packet).is_some());
        packet.destination.set_port(81);
        assert_eq!(table.pass(Place::Input, .., &mut packet), None);
    }
}
