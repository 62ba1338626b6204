//! A large table is created in several transactions, and packets meet all of it or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ::nftables::{
    Chain, Command, Element, Hook, Key, KeyType, RulesClient, Selector, Set, SetKind, Statement,
    Table, Value, Verdict,
};

use crate::nft;

const TABLE: &str = "ipvs-proxier-test";
const PORTS: &str = "ports";

/// The ports of each part, and the number of parts: together more elements than two transactions have.
const PART: u16 = 3_000;
const PARTS: u16 = 7;

/// Returns the table without elements: a verdict map, a chain that uses it, and one at a hook.
fn frame() -> Table {
    let mut table = Table::default();
    table.add_set(Set::new(PORTS, [KeyType::Port], SetKind::Verdicts));
    let lookup = Statement::VerdictMap {
        key: [Selector::TcpDestinationPort].into(),
        map: PORTS.into(),
    };
    let goto = |chain: &str| Statement::from(Verdict::Goto(chain.into()));
    let rule = |statement| ::nftables::Rule::new([statement]);
    table.add_chain(Chain::new("plain", [rule(lookup)]));
    table.add_chain(Chain::new("dropped", [rule(Verdict::Drop.into())]));
    table.add_chain(Chain::at("input", Hook::Input(0), [rule(goto("plain"))]));
    table
}

/// Returns the commands of one part.
fn part(number: u16) -> Vec<Command> {
    let ports = 1 + number * PART..=(number + 1) * PART;
    let elements = ports.map(|port| Command::AddElement(PORTS.into(), element(port, "dropped")));
    elements.collect()
}

fn element(port: u16, chain: &str) -> Element {
    Element {
        key: Key::new([Value::Port(port)]),
        verdict: Some(Verdict::Goto(chain.into())),
    }
}

fn whole() -> Table {
    let mut table = frame();
    let parts = (0..PARTS).flat_map(part);
    parts.for_each(|command| table.apply(&command));
    table
}

/// Returns whether the kernel has a chain of ours at a hook.
fn has_effect() -> bool {
    let chains = nft(&["list", "chains", "inet"], "").unwrap();
    chains.contains("hook input")
}

/// Asserts that the kernel has the whole table.
#[track_caller]
fn assert_whole(client: &mut RulesClient) {
    let difference = client.difference(&whole()).unwrap().unwrap();
    assert!(difference.is_empty(), "{:?}", difference.first());
    assert!(has_effect());
}

#[test]
fn a_table_has_no_effect_before_its_last_transaction() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        let first = client.read_generation().unwrap();
        let mut commands = 0;
        let parts = (0..PARTS).map(|number| {
            assert!(!has_effect());
            part(number)
        });
        client.create(&frame(), parts, |_| commands += 1).unwrap();
        // Each transaction has at most 8,192 commands.
        let generation = client.read_generation().unwrap();
        assert_eq!(generation - first, 3);
        assert_eq!(client.generation(), Some(generation));
        assert_eq!(commands, whole().creation().count());
        assert_whole(&mut client);
    });
}

#[test]
fn a_process_that_is_killed_between_leaves_what_the_next_one_completes() {
    lab::test(|| {
        let killed = catch_unwind(AssertUnwindSafe(|| {
            let mut client = RulesClient::open(TABLE).unwrap();
            let parts = (0..PARTS).map(|number| {
                assert!(number < PARTS - 2, "killed");
                part(number)
            });
            client.create(&frame(), parts, |_| ()).unwrap();
        }));
        killed.unwrap_err();
        let mut client = RulesClient::open(TABLE).unwrap();
        assert!(client.exists().unwrap() && !has_effect());
        let commands = client.difference(&whole()).unwrap().unwrap();
        // The hidden part is kept.
        assert!(commands.len() < usize::from(PART * 5), "{}", commands.len());
        client.apply(&commands).unwrap();
        assert_whole(&mut client);
    });
}

#[test]
fn a_change_by_another_program_between_is_noticed() {
    lab::test(|| {
        for change in [
            format!("delete element inet {TABLE} {PORTS} {{ 7 }}"),
            "add table ip other".to_owned(),
        ] {
            let mut client = RulesClient::open(TABLE).unwrap();
            let parts = (0..PARTS).map(|number| {
                if number == PARTS - 1 {
                    nft(&["-f", "-"], &change).unwrap();
                }
                part(number)
            });
            client.create(&frame(), parts, |_| ()).unwrap();
            assert_eq!(client.generation(), None, "{change}");
            client.restore(&whole()).unwrap();
            assert_whole(&mut client);
            client.delete().unwrap();
        }
    });
}

#[test]
fn a_refused_element_is_named_and_nothing_has_an_effect() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        let parts = (0..PARTS).map(|number| {
            let mut part = part(number);
            if number == PARTS - 1 {
                part[1] = Command::AddElement(PORTS.into(), element(20_000, "missing"));
            }
            part
        });
        let mut last = None;
        let each = |command: &Command| last = Some(command.clone());
        let error = client.create(&frame(), parts, each).unwrap_err();
        let error = error.to_string();
        let named = format!("add element inet {TABLE} {PORTS} {{ 20000 : goto missing }}: ");
        assert!(error.starts_with(&named), "{error}");
        assert!(!has_effect());
        client.restore(&whole()).unwrap();
        assert_whole(&mut client);
    });
}
