//! Maps of targets: destination NAT through maps, numbers in keys, targets that packets add.

use std::time::Duration;

use ::nftables::{
    Chain, Element, Hook, Key, KeyType, Match, Rule, RulesClient, Selector, Set, SetKind,
    Statement, Table, Value, Verdict,
};
use proxier::testing::model::{Family, Protocol};

use super::dump;
use crate::{assert_same, lines, nft};

const NAME: &str = "ipvs-proxier-test";

const FAMILIES: [(Family, &str, &str); 2] = [
    (Family::V4, "10.96.0.1", "10.244.1.2:8080"),
    (Family::V6, "fd00:10:96::1", "[fd00:244:1::2]:8080"),
];

fn name(kind: &str, family: Family) -> std::sync::Arc<str> {
    let number = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    format!("{kind}-{number}").into()
}

fn frontend(family: Family) -> [Selector; 3] {
    [
        Selector::Destination(family),
        Selector::Protocol,
        Selector::DestinationPort,
    ]
}

fn with(parts: impl IntoIterator<Item = Selector>, last: Selector) -> Box<[Selector]> {
    parts.into_iter().chain([last]).collect()
}

/// Returns a table with every number in the key of a map of targets.
fn nat() -> Table {
    let mut table = Table::default();
    let mut rules = Vec::new();
    for (family, address, target) in FAMILIES {
        let address_type = KeyType::Address(family);
        let frontend_type = [address_type, KeyType::Protocol, KeyType::Port];
        let types: Vec<KeyType> = frontend_type.into_iter().chain([KeyType::Mark]).collect();
        let mut endpoints = Set::new(name("endpoints", family), types, SetKind::Targets(family));
        for slot in [0, 1, 65_536] {
            let parts = [
                Value::from(address.parse::<std::net::IpAddr>().unwrap()),
                Value::Protocol(Protocol::Tcp),
                Value::Port(443),
                Value::Mark(slot),
            ];
            endpoints.insert_target(Key::new(parts), target.parse().unwrap());
        }
        table.add_set(endpoints);
        let hash = |with_port, first| Selector::SourceHash {
            family,
            with_port,
            count: 3,
            first,
        };
        for number in [
            Selector::Random { count: 3, first: 0 },
            Selector::Random {
                count: 2,
                first: 65_536,
            },
            Selector::Number(0),
            Selector::Number(65_536),
            hash(false, 0),
            hash(true, 65_536),
        ] {
            rules.push(Rule::new([Statement::DestinationNat {
                family,
                key: with(frontend(family), number),
                map: name("endpoints", family),
            }]));
        }
        let ping = Match::EchoRequest(family);
        rules.push(Rule::new([ping.into(), Statement::Redirect]));
    }
    table.add_chain(Chain::at("pre", Hook::NatPrerouting(-101), rules));
    let translated = [Match::Translated.into(), Verdict::Drop.into()];
    let filter = Chain::at("after", Hook::Prerouting(-99), [Rule::new(translated)]);
    table.add_chain(filter);
    table
}

/// Returns a table whose packets add targets.
fn learning() -> Table {
    let mut table = Table::default();
    let mut rules = Vec::new();
    let mut back = Vec::new();
    for (family, address, _) in FAMILIES {
        let address_type = KeyType::Address(family);
        let frontend_type = [address_type, KeyType::Protocol, KeyType::Port];
        let types: Vec<KeyType> = frontend_type.into_iter().chain([address_type]).collect();
        let size = 262_144;
        let learned = SetKind::LearnedTargets { family, size };
        table.add_set(Set::new(name("affinity", family), types, learned));
        let mut sticky = Set::new(name("sticky", family), frontend_type, SetKind::Verdicts);
        let parts = [
            Value::from(address.parse::<std::net::IpAddr>().unwrap()),
            Value::Protocol(Protocol::Tcp),
            Value::Port(443),
        ];
        sticky.insert(Element {
            key: Key::new(parts),
            verdict: Some(Verdict::Goto("learn".into())),
        });
        table.add_set(sticky);
        let original = [
            Selector::OriginalDestination(family),
            Selector::Protocol,
            Selector::OriginalDestinationPort,
        ];
        rules.push(Rule::new([Statement::VerdictMap {
            key: original.into(),
            map: name("sticky", family),
        }]));
        back.push(Rule::new([Statement::Learn {
            family,
            map: name("affinity", family),
            key: with(original, Selector::OriginalSource(family)),
            timeout: Duration::from_secs(10_800),
        }]));
    }
    table.add_chain(Chain::new("learn", back));
    table.add_chain(Chain::at("after", Hook::Prerouting(-99), rules));
    table
}

#[test]
fn nft_lists_targets_as_we_print_them_and_sends_the_same_bytes() {
    lab::test(|| {
        let mut client = RulesClient::open(NAME).unwrap();
        let table = nat();
        client.restore(&table).unwrap();
        let text = table.named(NAME).to_string();
        assert_same(&lines(&list()), &lines(&text));
        let ours = without_sets(dump::inet_table(NAME));
        // nft has no type for a number of four bytes that it both declares and prints: it prints ours, a `mark`, and
        // reads `typeof`.
        let mut text = text;
        for (family, name) in [("ipv4", "ip"), ("ipv6", "ip6")] {
            let types = format!("type {family}_addr . inet_proto . inet_service . mark");
            let target = format!(" : {family}_addr . inet_service");
            let expressions = format!(
                "typeof {name} daddr . meta l4proto . th dport . numgen random mod 65536 : {name} daddr . th dport"
            );
            text = text.replace(&(types + &target), &expressions);
        }
        nft(&["-f", "-"], &format!("delete table inet {NAME}\n{text}")).unwrap();
        assert_same(&ours, &without_sets(dump::inet_table(NAME)));
    });
}

/// Not the bytes: nft wants a rule for each protocol before it reads `proto-dst`.
#[test]
fn nft_lists_learned_targets_as_we_print_them() {
    lab::test(|| {
        let mut client = RulesClient::open(NAME).unwrap();
        let table = learning();
        client.restore(&table).unwrap();
        assert_same(&lines(&list()), &lines(&table.named(NAME).to_string()));
        nft(&["-j", "list", "ruleset"], "").unwrap();
    });
}

/// Leaves out the definitions of sets.
fn without_sets(mut dumped: Vec<String>) -> Vec<String> {
    const GETSET: &str = "10: ";
    dumped.retain(|line| !line.starts_with(GETSET));
    dumped
}

fn list() -> String {
    nft(&["list", "table", "inet", NAME], "").unwrap()
}

#[test]
fn what_is_recognised_is_not_written_again() {
    lab::test(|| {
        for (table, mut changed) in [(nat(), nat()), (learning(), learning())] {
            let mut client = RulesClient::open(NAME).unwrap();
            client.restore(&table).unwrap();
            let generation = client.read_generation().unwrap();
            client.restore(&table).unwrap();
            assert_eq!(client.read_generation().unwrap(), generation);
            // Another target of a key is another element.
            let Some(endpoints) = changed.sets.get_mut("endpoints-4") else {
                continue;
            };
            let key = endpoints.elements().next().unwrap().key;
            let target = "192.0.2.7:1".parse().unwrap();
            endpoints.insert_target(key, target);
            client.apply(&table.difference(&changed)).unwrap();
            let generation = client.read_generation().unwrap();
            client.restore(&changed).unwrap();
            assert_eq!(client.read_generation().unwrap(), generation);
        }
    });
}
