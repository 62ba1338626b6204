//! Our packet filter in a real kernel, beside nft's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use proxier::model::{Family, TrafficPolicy};
use proxier::nftables::{Client, Networks, Table};
use proxier::rules::{self, Config, DetectLocal, Endpoints, Frontend, Kind, Place, TABLE};

mod nftables {
    pub(super) mod dump;
}

/// Runs nft, and gives what it prints.
fn nft(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("nft")
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

fn place(frontend: &str) -> Place {
    let (protocol, address) = frontend.split_once(' ').unwrap();
    let address: std::net::SocketAddr = address.parse().unwrap();
    Place {
        protocol: match protocol {
            "tcp" => proxier::model::Protocol::Tcp,
            "udp" => proxier::model::Protocol::Udp,
            _ => proxier::model::Protocol::Sctp,
        },
        address: address.ip(),
        port: address.port(),
    }
}

fn frontend(kind: Kind, policy: TrafficPolicy) -> Frontend {
    Frontend {
        kind,
        policy,
        endpoints: Endpoints::Some,
        source_ranges: None,
        inside: None,
    }
}

fn ranges(family: Family, list: &[&str]) -> Option<Networks> {
    let networks = list.iter().map(|text| text.parse().unwrap());
    Some(Networks::new(family, networks))
}

/// A table in which everything occurs that can.
fn everything(detect_local: DetectLocal) -> Table {
    use TrafficPolicy::{Cluster, Local};
    let config = Config {
        detect_local,
        answer_ping: true,
        node_addresses: vec!["172.18.0.2".parse().unwrap()],
        ..Config::default()
    };
    let cluster_ip = frontend(Kind::ClusterIp, Cluster);
    let external = frontend(Kind::External, Cluster);
    let local = Frontend {
        endpoints: Endpoints::Elsewhere,
        inside: Some(0x8000_0001),
        ..frontend(Kind::External, Local)
    };
    let frontends = [
        (place("tcp 10.96.0.1:443"), cluster_ip.clone()),
        (place("udp 10.96.0.10:53"), cluster_ip.clone()),
        (place("sctp [fd00:10:96::1]:7777"), cluster_ip.clone()),
        (
            place("tcp 10.96.0.9:80"),
            Frontend {
                endpoints: Endpoints::None,
                ..cluster_ip
            },
        ),
        (place("tcp 172.18.0.2:30080"), external.clone()),
        (
            place("tcp 198.51.100.12:80"),
            Frontend {
                source_ranges: ranges(
                    Family::V4,
                    &["203.0.113.0/24", "172.18.0.0/15", "0.0.0.0/31"],
                ),
                ..external.clone()
            },
        ),
        (
            place("tcp [2001:db8::12]:80"),
            Frontend {
                source_ranges: ranges(Family::V6, &["2001:db8:113::/48", "ffff::/17"]),
                ..external.clone()
            },
        ),
        (
            place("tcp 198.51.100.13:80"),
            Frontend {
                source_ranges: ranges(Family::V4, &["10.0.0.0/9"]),
                endpoints: Endpoints::None,
                ..external
            },
        ),
        (place("tcp 198.51.100.19:80"), local.clone()),
        (place("udp [fd00:172:18::2]:30054"), local),
    ];
    let addresses = |list: &[&str]| {
        let parsed = list.iter().map(|text| text.parse().unwrap());
        parsed.collect::<Vec<std::net::IpAddr>>()
    };
    rules::table(
        &config,
        frontends.iter().map(|(place, frontend)| (place, frontend)),
        addresses(&["10.96.0.1", "198.51.100.12", "fd00:10:96::1"]),
        addresses(&["10.244.1.2", "fd00:244:1::2"]),
        [31_999],
    )
}

/// The lines of a table, with the elements of sets, which the kernel keeps in no order, sorted and
/// one to a line.
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
        found.extend(part.split(", ").map(str::to_owned));
        if is_last {
            found.sort();
            lines.append(found);
            elements = None;
        }
    }
    lines
}

#[track_caller]
fn assert_same(left: &[String], right: &[String]) {
    let differing = left.iter().zip(right).find(|(left, right)| left != right);
    assert_eq!(differing, None);
    assert_eq!(left.len(), right.len());
}

fn modes() -> [DetectLocal; 4] {
    let networks = ["10.244.0.0/16", "fd00:244::/31"];
    [
        DetectLocal::Networks(networks.map(|text| text.parse().unwrap()).into()),
        DetectLocal::Networks(Vec::new()),
        DetectLocal::Bridge("cni0".into()),
        DetectLocal::InterfacePrefix("veth".into()),
    ]
}

#[test]
fn nft_prints_what_we_print() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        for mode in modes() {
            let table = everything(mode);
            client.replace(&table).unwrap();
            let listed = nft(&["list", "table", "inet", TABLE], "").unwrap();
            assert_same(&lines(&listed), &lines(&table.named(TABLE).to_string()));
        }
    });
}

#[test]
fn nft_makes_of_our_text_what_we_make_ourselves() {
    lab::test(|| {
        for mode in modes() {
            let table = everything(mode);
            Client::open(TABLE).unwrap().replace(&table).unwrap();
            let ours = nftables::dump::table(TABLE);
            let text = table.named(TABLE).to_string();
            nft(&["-f", "-"], &format!("delete table inet {TABLE}\n{text}")).unwrap();
            let nfts = nftables::dump::table(TABLE);
            assert!(ours.len() > 40, "{}", ours.len());
            assert_same(&ours, &nfts);
        }
    });
}
