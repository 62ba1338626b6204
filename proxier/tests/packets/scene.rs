//! The conformance network, whose node the library programs in this process.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::thread;

use ::nftables::RulesClient;
use lab::net::{Answer, Cluster, Host};
use proxier::testing::dataplane::Dataplane;
use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::dataplane::nftables::{self, Nftables};
use proxier::testing::filter::{self, FilterConfig, LocalMode};
use proxier::testing::ledger::LedgerFile;
use proxier::testing::manifests;
use proxier::testing::model::{Cidr, Family, Protocol};
use proxier::testing::plan::{PlanConfig, ServiceAddresses};
use proxier::testing::sync::Proxier;
use proxier::testing::sysctl::{self, KernelVersion, Roots};
use proxier::testing::{clock, conntrack};
use tempfile::TempDir;

/// The network, and our proxy on its node `node-a`, by default with IPVS.
pub(crate) struct Scene<D = Ipvs<Linux>> {
    pub(crate) cluster: Cluster,
    pub(crate) proxier: Proxier<D>,
    form: ServiceAddresses,
    packets: FilterConfig,
    state: TempDir,
}

/// A dataplane of the kernel that a scene's proxy has.
pub(crate) trait Subject: Dataplane + Sized {
    /// Its table of packet rules.
    const TABLE: &str;
    /// Its default form of service addresses.
    const FORM: ServiceAddresses;
    /// Whether it translates connections to frontends. IPVS does without the kernel's destination NAT.
    const TRANSLATES: bool;
    /// How often requests are repeated at most until all endpoints have answered.
    const ROUNDS: usize;

    /// Gives the node what a machine has that runs this dataplane.
    fn prepare(node: &Host);

    /// Returns a new process.
    fn start(form: ServiceAddresses, packets: &FilterConfig, state: &TempDir) -> Proxier<Self>;
}

impl Subject for Ipvs<Linux> {
    const TABLE: &str = filter::TABLE;
    const FORM: ServiceAddresses = ServiceAddresses::Routes;
    const TRANSLATES: bool = false;
    // The scheduler takes turns, so a few requests reach all endpoints.
    const ROUNDS: usize = 1;

    fn prepare(_: &Host) {
        let settings = sysctl::desired_settings(
            &sysctl::SysctlConfig::default(),
            Some(KernelVersion(6, 1)),
            1,
        );
        let report = Roots::default().apply(&settings);
        assert_eq!(report.warnings(), Vec::<String>::new());
    }

    fn start(form: ServiceAddresses, packets: &FilterConfig, state: &TempDir) -> Proxier<Self> {
        let file = LedgerFile::new(state.path().join("state"));
        Proxier::new(Linux::open(form).unwrap(), plan(form), file)
            .unwrap()
            .filtering(packets.clone())
    }
}

impl Subject for Nftables {
    const TABLE: &str = nftables::TABLE;
    const FORM: ServiceAddresses = ServiceAddresses::None;
    const TRANSLATES: bool = true;
    // Endpoints are drawn at random: of two, one is missed in 6 requests with probability 1/32.
    const ROUNDS: usize = 12;

    fn prepare(node: &Host) {
        // No service address is local, so a process of the node needs a route.
        for (version, via, source) in [
            ("-4", "203.0.113.9", "172.18.0.2"),
            ("-6", "2001:db8:113::9", "fd00:172:18::2"),
        ] {
            let route = ["ip", version, "route", "add", "default", "via", via];
            node.exec(&[&route[..], &["src", source]].concat());
        }
    }

    fn start(form: ServiceAddresses, packets: &FilterConfig, _: &TempDir) -> Proxier<Self> {
        Proxier::of(Self::open(packets.clone(), &[]).unwrap(), plan(form))
    }
}

/// Makes each function a test with each dataplane, its type parameter.
macro_rules! with_each_dataplane {
    ($($name:ident),+ $(,)?) => {
        mod with_ipvs {
            use proxier::testing::dataplane::{ipvs::Ipvs, linux::Linux};

            $(#[test]
            fn $name() {
                lab::test(|| super::$name::<Ipvs<Linux>>());
            })+
        }

        mod with_nftables {
            use proxier::testing::dataplane::nftables::Nftables;

            $(#[test]
            fn $name() {
                lab::test(|| super::$name::<Nftables>());
            })+
        }
    };
}
pub(crate) use with_each_dataplane;

/// The distinct answers to a number of requests: `pod1/client`, `refused`, `timeout`.
///
/// `pod1/client` means that pod1 answered and saw the client's address; `/node` and `/vip` mean that it
/// saw an address of the node or the service address.
pub(crate) type Answers = BTreeSet<String>;

/// Returns the network of the conformance data.
pub(crate) fn network() -> Cluster {
    let cluster = Cluster::conformance();
    // In the network of the conformance data, podB2 has an IPv6 address. The lab's has none.
    let six = "fd00:244:2::3";
    cluster
        .pod_b2
        .exec(&["ip", "address", "add", six, "dev", "eth0", "nodad"]);
    let default = ["ip", "-6", "route", "add", "default", "via", "fe80::1"];
    cluster
        .pod_b2
        .exec(&[&default[..], &["dev", "eth0"]].concat());
    let here = ["ip", "-6", "route", "add", six, "dev", "veth-podB2"];
    cluster.peer.exec(&here);
    let there = ["ip", "-6", "route", "add", six, "via", "fd00:172:18::3"];
    cluster.node.exec(&there);
    cluster
}

pub(crate) fn cluster_networks() -> LocalMode {
    let networks = ["10.244.0.0/16", "fd00:244::/32"];
    LocalMode::ClusterCidr(networks.map(|text| text.parse::<Cidr>().unwrap()).into())
}

impl Scene {
    /// Returns the network with the Services of `manifests`, which IPVS serves. Clients with a Pod's address are inside.
    pub(crate) fn new(manifests: impl Display) -> Self {
        Self::serving(manifests)
    }

    /// As [`new`](Self::new), with another configuration.
    pub(crate) fn with(
        manifests: impl Display,
        form: ServiceAddresses,
        configure: impl FnOnce(&mut FilterConfig),
    ) -> Self {
        Self::configured(manifests, form, configure)
    }
}

impl<D: Subject> Scene<D> {
    /// Returns the network with the Services of `manifests`. Clients with a Pod's address are inside.
    pub(crate) fn serving(manifests: impl Display) -> Self {
        Self::configured(manifests, D::FORM, |_| {})
    }

    /// As [`serving`](Self::serving), with another configuration.
    pub(crate) fn configured(
        manifests: impl Display,
        form: ServiceAddresses,
        configure: impl FnOnce(&mut FilterConfig),
    ) -> Self {
        let cluster = network();
        let mut packets = FilterConfig {
            local_mode: cluster_networks(),
            ..FilterConfig::default()
        };
        configure(&mut packets);
        let state = tempfile::tempdir().unwrap();
        D::prepare(&cluster.node);
        let mut scene = Self {
            proxier: D::start(form, &packets, &state),
            cluster,
            form,
            packets,
            state,
        };
        scene.program(manifests);
        scene
    }

    /// Replaces our proxy by a new process that reads what the earlier one left.
    pub(crate) fn restart(&mut self) {
        self.proxier = D::start(self.form, &self.packets, &self.state);
    }

    /// Returns the network, and a function that restarts our proxy and programs `manifests`.
    pub(crate) fn restarting(&mut self, manifests: &dyn Display) -> (&Cluster, impl FnMut()) {
        let Self {
            cluster,
            proxier,
            form,
            packets,
            state,
        } = self;
        let manifests = manifests.to_string();
        let restart = move || {
            *proxier = D::start(*form, packets, state);
            program(proxier, &manifests);
        };
        (cluster, restart)
    }

    /// Programs the kernel for the Services of `manifests` and no others.
    pub(crate) fn program(&mut self, manifests: impl Display) {
        program(&mut self.proxier, manifests);
    }

    /// Deletes our table.
    pub(crate) fn delete_table(&self) {
        RulesClient::open(D::TABLE).unwrap().delete().unwrap();
    }

    /// Runs the nft `commands` on the node.
    pub(crate) fn nft(&self, commands: &str) {
        nft(&self.cluster.node, commands);
    }

    /// Returns the clients of the network.
    pub(crate) fn clients(&self) -> Clients<'_> {
        let (cluster, rounds) = (&self.cluster, D::ROUNDS);
        Clients { cluster, rounds }
    }

    /// As [`Clients::host`].
    pub(crate) fn client(&self, name: &str) -> &Host {
        self.clients().host(name)
    }

    /// As [`Clients::ask`].
    pub(crate) fn ask(&self, client: &str, frontend: &str, times: usize) -> Answers {
        self.clients().ask(client, frontend, times)
    }

    /// As [`Clients::ask_at_once`].
    pub(crate) fn ask_at_once(&self, questions: &[(&str, &str)]) -> Vec<Answers> {
        self.clients().ask_at_once(questions)
    }
}

/// The hosts of the network as clients.
#[derive(Clone, Copy)]
pub(crate) struct Clients<'a> {
    pub(crate) cluster: &'a Cluster,
    /// How often requests are repeated at most until all expected answers have come.
    pub(crate) rounds: usize,
}

impl<'a> Clients<'a> {
    /// Returns the host `name`.
    pub(crate) fn host(self, name: &str) -> &'a Host {
        let cluster = self.cluster;
        match name {
            "pod1" => &cluster.pod1,
            "pod2" => &cluster.pod2,
            "pod3" => &cluster.pod3,
            "podB1" => &cluster.pod_b1,
            "podB2" => &cluster.pod_b2,
            "node" => &cluster.node,
            "peer" => &cluster.peer,
            "ext" => &cluster.ext,
            "ext2" => &cluster.ext2,
            other => panic!("no host is called {other}"),
        }
    }

    /// Sends requests from `client` to `frontend` and returns the different answers, in the words of the
    /// conformance data.
    pub(crate) fn ask(self, client: &str, frontend: &str, times: usize) -> Answers {
        ask(self.host(client), client, frontend, times)
    }

    /// Sends a request for each `(client, frontend)`, all at once, because each that gets no answer takes
    /// seconds. Returns the answers in the same order.
    pub(crate) fn ask_at_once(self, questions: &[(&str, &str)]) -> Vec<Answers> {
        thread::scope(|scope| {
            let asked = questions.iter().map(|&(client, frontend)| {
                let host = self.host(client);
                scope.spawn(move || ask(host, client, frontend, 1))
            });
            let asked: Vec<_> = asked.collect();
            let answers = asked.into_iter().map(|it| it.join().unwrap());
            answers.collect()
        })
    }

    /// Sends `times` requests, again and again while some of the `expected` answers are missing and no other has come.
    pub(crate) fn ask_for(
        self,
        client: &str,
        frontend: &str,
        expected: &Answers,
        times: usize,
    ) -> Answers {
        let mut answers = Answers::new();
        for _ in 0..self.rounds {
            answers.extend(self.ask(client, frontend, times));
            if answers == *expected || !answers.is_subset(expected) {
                break;
            }
        }
        answers
    }
}

/// Sends requests from `host`, called `client`, to `frontend` and returns the different answers.
fn ask(host: &Host, client: &str, frontend: &str, times: usize) -> Answers {
    let (protocol, to) = frontend.split_once(' ').unwrap();
    let to: std::net::SocketAddr = to.parse().unwrap();
    let ask = match protocol {
        "tcp" => lab::net::ask_tcp,
        "udp" => lab::net::ask_udp,
        "sctp" => lab::net::ask_sctp,
        other => panic!("{other}"),
    };
    let mut answers = Answers::new();
    host.run(|| {
        for _ in 0..times {
            let answer = ask(to);
            answers.insert(words(client, to.ip(), &answer));
            if matches!(answer, Answer::Timeout) {
                // Each timeout takes seconds, and one is enough.
                break;
            }
        }
    });
    answers
}

fn plan(form: ServiceAddresses) -> PlanConfig {
    PlanConfig {
        node_name: "node-a".into(),
        service_addresses: form,
        ..PlanConfig::default()
    }
}

/// Gives `proxier` the Services of `manifests` and no others.
pub(crate) fn receive<D: Dataplane>(proxier: &mut Proxier<D>, manifests: impl Display) {
    let options = manifests::Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let loaded = manifests::parse(&manifests.to_string(), "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    proxier.receive(loaded.events);
}

/// Programs the kernel for the Services of `manifests` and no others.
pub(crate) fn program<D: Dataplane>(proxier: &mut Proxier<D>, manifests: impl Display) {
    receive(proxier, manifests);
    let applied = proxier.sync(clock::since_boot()).unwrap();
    let failures: Vec<_> = applied.failures().collect();
    assert!(failures.is_empty(), "{failures:?}");
    assert!(proxier.dataplane().has_written_rules());
}

/// Runs the nft `commands` on `node`.
pub(crate) fn nft(node: &Host, commands: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), commands).unwrap();
    let path = file.path().to_str().unwrap();
    node.exec(&["/usr/sbin/nft", "-f", path]);
}

/// Returns the flows of `protocol` that the node tracks: `10.96.1.1:53 at 10.244.1.2:5353`.
pub(crate) fn flows(protocol: Protocol) -> BTreeSet<String> {
    let mut table = conntrack::ConntrackClient::open().unwrap();
    [Family::V4, Family::V6]
        .into_iter()
        .flat_map(|family| table.flows(family, protocol).unwrap())
        .map(|flow| format!("{} at {}", flow.original.destination, flow.reply.source))
        .collect()
}

/// Returns `answer` in the words of the conformance data.
fn words(client: &str, to: IpAddr, answer: &Answer) -> String {
    let (Some(backend), Some(source)) = (answer.backend(), answer.source()) else {
        return answer.to_string();
    };
    let source = source.to_string();
    let is_node = Cluster::NODE_ADDRESSES.contains(&source.as_str());
    let who = match client {
        "node" if is_node => "node",
        _ if CLIENTS.contains(&(client, &*source)) => "client",
        _ if is_node => "node",
        _ if source == to.to_string() => "vip",
        _ => return format!("{backend}/{source}"),
    };
    format!("{backend}/{who}")
}

/// The addresses of the hosts.
const CLIENTS: [(&str, &str); 16] = [
    ("pod1", "10.244.1.2"),
    ("pod1", "fd00:244:1::2"),
    ("pod2", "10.244.1.3"),
    ("pod2", "fd00:244:1::3"),
    ("pod3", "10.244.1.4"),
    ("pod3", "fd00:244:1::4"),
    ("podB1", "10.244.2.2"),
    ("podB1", "fd00:244:2::2"),
    ("podB2", "10.244.2.3"),
    ("podB2", "fd00:244:2::3"),
    ("peer", "172.18.0.3"),
    ("peer", "fd00:172:18::3"),
    ("ext", "203.0.113.9"),
    ("ext", "2001:db8:113::9"),
    ("ext2", "192.0.2.9"),
    ("ext2", "2001:db8:2::9"),
];
