//! Our table in a real kernel, compared with what nft lists and sends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::process::{self, Stdio};

use ::nftables::{Command, Element, Key, RulesClient, Table, Value};
use proxier::testing::dataplane::answer_path;
use proxier::testing::filter::TABLE;

#[path = "survival/dice.rs"]
mod dice;

mod nftables {
    mod changes;
    mod creation;
    mod deletion;
    pub(super) mod dump;
    mod guards;
    mod histories;
    mod missing;
    mod restore;
    pub(super) mod rules;
    pub(super) mod services;
    mod targets;
    mod watch;
}

use nftables::rules::{everything, modes};

/// Runs nft and returns its output.
fn nft(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = process::Command::new("nft")
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// Returns our tables as nft lists them.
fn list() -> String {
    let list = |family| nft(&["list", "table", family, TABLE], "").unwrap();
    ["inet", "arp"].map(list).concat()
}

/// Returns the lines of a table, with one element in a line. Elements are sorted, because the kernel
/// lists them in no particular order. Without the values of counters.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut elements: Option<Vec<String>> = None;
    for line in text.lines() {
        let line = line.trim();
        let part = line.strip_prefix("elements = { ");
        if part.is_some() {
            elements = Some(Vec::new());
        }
        let Some(found) = &mut elements else {
            lines.push(line.to_owned());
            continue;
        };
        let part = part.unwrap_or(line);
        let (part, is_last) = match part.strip_suffix(" }") {
            Some(part) => (part, true),
            None => (part.trim_end_matches(','), false),
        };
        let counted = |element: &str| match element.split_once(" counter packets ") {
            Some((key, _)) => key.to_owned(),
            None => element.to_owned(),
        };
        found.extend(part.split(", ").map(counted));
        if is_last {
            found.sort();
            lines.append(found);
            elements = None;
        }
    }
    lines
}

/// Asserts that the lines are the same. Shows only the first difference.
#[track_caller]
fn assert_same(left: &[String], right: &[String]) {
    let differing = left.iter().zip(right).find(|(left, right)| left != right);
    assert_eq!(differing, None);
    assert_eq!(left.len(), right.len());
}

#[test]
fn nft_lists_our_table_as_we_print_it() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        for mode in modes() {
            let table = everything(mode);
            client.replace(&table).unwrap();
            assert_same(&lines(&list()), &lines(&table.named(TABLE).to_string()));
        }
    });
}

#[test]
fn nft_sends_the_same_bytes_for_our_text() {
    lab::test(|| {
        for mode in modes() {
            let table = everything(mode);
            RulesClient::open(TABLE).unwrap().replace(&table).unwrap();
            let ours = nftables::dump::table(TABLE);
            let text = table.named(TABLE).to_string();
            let delete = format!("delete table inet {TABLE}\ndelete table arp {TABLE}\n");
            nft(&["-f", "-"], &(delete + &text)).unwrap();
            let nfts = nftables::dump::table(TABLE);
            assert!(ours.len() > 40, "{}", ours.len());
            assert_same(&ours, &nfts);
        }
    });
}

#[test]
fn nft_reads_and_lists_the_table_of_the_relay() {
    lab::test(|| {
        let (name, table) = (answer_path::TABLE, answer_path::table());
        let mut client = RulesClient::open(name).unwrap();
        client.restore(&table).unwrap();
        let listed = nft(&["list", "table", "inet", name], "").unwrap();
        let text = table.named(name).to_string();
        assert_same(&lines(&listed), &lines(&text));
        let ours = nftables::dump::inet_table(name);
        nft(
            &["-f", "-"],
            &(format!("delete table inet {name}\n") + &text),
        )
        .unwrap();
        assert_same(&ours, &nftables::dump::inet_table(name));
        // What is recognised as ours is not written again.
        client.restore(&table).unwrap();
        let generation = client.read_generation().unwrap();
        client.restore(&table).unwrap();
        assert_eq!(client.read_generation().unwrap(), generation);
    });
}

/// Foreign tables of several families.
const FOREIGN: &str = "
    table ip filter {
        chain FORWARD { type filter hook forward priority filter; policy accept; }
    }
    table inet kube-proxy {
        set x {
            type ipv4_addr
            elements = { 10.0.0.1 }
        }
    }
    table ip6 nat {
        chain c {
            type nat hook postrouting priority srcnat
            oifname \"eth9\" masquerade
        }
    }
    table ip6 n {
        chain c {
            counter
        }
    }
    table ip ipvs-proxier {
        chain c {
            accept
        }
    }
";

/// Returns the foreign tables as nft lists them.
fn foreign() -> String {
    nft(&["-s", "list", "table", "ip", "filter"], "").unwrap()
        + &nft(&["-s", "list", "table", "inet", "kube-proxy"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip6", "nat"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip6", "n"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip", TABLE], "").unwrap()
}

#[test]
fn foreign_tables_stay_unchanged() {
    lab::test(|| {
        nft(&["-f", "-"], FOREIGN).unwrap();
        let all = || nft(&["-s", "-a", "list", "ruleset"], "").unwrap();
        let (before, everything_before) = (foreign(), all());
        let mut client = RulesClient::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        assert_eq!(foreign(), before);
        client.delete().unwrap();
        assert_eq!(all(), everything_before);
        // Deleting a missing table succeeds.
        client.delete().unwrap();
        assert!(!client.exists().unwrap());
        assert_eq!(all(), everything_before);
    });
}

#[test]
fn a_refused_command_is_named_and_the_transaction_has_no_effect() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        let before = nftables::dump::table(TABLE);
        let port = |port| Element {
            key: Key::new([Value::Port(port)]),
            verdict: None,
        };
        let set = std::sync::Arc::<str>::from("health-check-ports");
        let missing = Command::DeleteElement(set.clone(), port(3).key);
        let mut changes: Vec<Command> = [1, 2]
            .map(|it| Command::AddElement(set.clone(), port(it)))
            .into();
        changes.push(Command::DeleteElement(set.clone(), port(1).key));
        changes.push(missing);
        let error = client.apply(&changes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "delete element inet ipvs-proxier health-check-ports { 3 }: \
             No such file or directory (os error 2)"
        );
        assert!(error.is_out_of_step());
        assert_same(&nftables::dump::table(TABLE), &before);
        // Adding existing elements succeeds.
        client.apply(&changes[..2]).unwrap();
        client.apply(&changes[..2]).unwrap();

        let unknown = Command::DeleteChain("missing".into());
        let error = client.apply(&[unknown]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("delete chain inet ipvs-proxier missing: No such file"),
            "{error}"
        );
        // If the table is missing, every command fails as out of step.
        client.delete().unwrap();
        assert!(client.apply(&changes[..1]).unwrap_err().is_out_of_step());
    });
}

#[test]
fn transactions_succeed_while_another_program_changes_its_table() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        let mut other = RulesClient::open("another").unwrap();
        let namespace = lab::net::node("here");
        let set = std::sync::Arc::<str>::from("health-check-ports");
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                namespace.run(|| {
                    for _ in 0..300 {
                        other.replace(&Table::default()).unwrap();
                        other.delete().unwrap();
                    }
                });
            });
            for port in 1..300 {
                let key = Key::new([Value::Port(port)]);
                let element = Element { key, verdict: None };
                let change = Command::AddElement(set.clone(), element);
                client.apply(&[change]).unwrap();
            }
            busy.join().unwrap();
        });
        let ports = nft(&["list", "set", "inet", TABLE, &set], "").unwrap();
        assert!(ports.contains("299"), "{ports}");
    });
}

#[test]
fn the_table_of_a_node_in_nft_syntax() {
    let table = everything(modes()[0].clone());
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false,
        snapshot_path => "nftables" }, {
        insta::assert_snapshot!("everything", table.named(TABLE).to_string());
    });
}
