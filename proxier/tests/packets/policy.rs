//! NetworkPolicy of Calico for a Pod behind a Service.
//!
//! Felix is no Debian package. Its rules for IPVS are rebuilt here from its sources (calico 87c15906f2:
//! `felix/rules/static.go`, `felix/ifacemonitor`, `felix/dataplane/driver.go`) and written as Felix writes
//! them: by `iptables-restore` of either iptables, with the addresses of the host in an ipset. A denied
//! packet is rejected instead of dropped, so that clients need not wait.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lab::net::{Answer, Host};
use proxier::testing::model::TrafficPolicy;
use proxier::testing::plan::ServiceAddresses;

use super::host_ports::has_iptables;
use super::local::fill_map;
use super::plugin::Iptables;
use super::scene::{Scene, Subject, with_each_dataplane};
use super::services::{POD1, Services};
use crate::at;

/// The bits of Felix' endpoint mark, among its default bits 0xffff0000.
const ENDPOINT_MARK: &str = "0xfff00000";

/// How Felix treats connections to pod1.
#[derive(Clone, Copy, Debug)]
enum Policy {
    DenyAll,
    /// Allows only pod3, by its addresses.
    AllowPod3,
    AllowAll,
}

/// The names of an IP family in the programs that Felix runs.
struct Family {
    /// The flag of `ip`.
    flag: &'static str,
    /// The ipset's name and family.
    set: &'static str,
    inet: &'static str,
    restore: &'static str,
    conntrack: &'static str,
    pod3: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        flag: "-4",
        set: "cali40this-host",
        inet: "inet",
        restore: "iptables-restore",
        conntrack: "ipv4",
        pod3: "10.244.1.4",
    },
    Family {
        flag: "-6",
        set: "cali60this-host",
        inet: "inet6",
        restore: "ip6tables-restore",
        conntrack: "ipv6",
        pod3: "fd00:244:1::4",
    },
];

/// Felix on the node.
struct Felix<'a> {
    node: &'a Host,
    iptables: Iptables,
}

impl Felix<'_> {
    /// Starts Felix, whose IPVS support depends on the devices that exist now.
    fn start(&self, policy: Policy) {
        let links = self.node.exec(&["ip", "-oneline", "link"]);
        let has_ipvs = links.contains("kube-ipvs0");
        for family in FAMILIES {
            self.write_addresses(&family);
            let rules = rules(&family, policy, has_ipvs);
            // Another test may hold the lock.
            let program = [self.iptables.program(), family.restore, "--wait=60"];
            self.read_file(&program, &rules);
            // Felix does not cut the flows that an earlier policy admitted, and a new client may have the port
            // of such a flow.
            let flush = ["/usr/sbin/conntrack", "-F", "-f", family.conntrack];
            self.node.exec(&flush);
        }
    }

    /// Writes Felix' view of the host's addresses: those of all local routes, except on the devices of
    /// Pods and on `kube-ipvs0`.
    fn write_addresses(&self, family: &Family) {
        let Family { set, inet, .. } = family;
        let show = ["ip", family.flag, "route", "show", "table", "local"];
        let routes = self.node.exec(&[&show[..], &["type", "local"]].concat());
        let mut commands = format!("create {set} hash:ip family {inet}\nflush {set}\n");
        for route in routes.lines() {
            if !route.contains("dev veth-") && !route.contains("dev kube-ipvs0") {
                let network = route.split(' ').nth(1).unwrap();
                let address = network.split('/').next().unwrap();
                writeln!(commands, "add {set} {address}").unwrap();
            }
        }
        self.read_file(
            &["/usr/sbin/ipset", "-exist", "restore", "-file"],
            &commands,
        );
    }

    /// Runs a program that reads `text` from the file of its last argument.
    fn read_file(&self, program: &[&str], text: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        self.node.exec(&[program, &[path]].concat());
    }
}

/// Returns the whole table `filter` of a family, as `iptables-restore` reads it.
fn rules(family: &Family, policy: Policy, has_ipvs: bool) -> String {
    let Family { set, pod3, .. } = family;
    let allow = match policy {
        Policy::DenyAll => String::new(),
        Policy::AllowPod3 => format!("-A cali-tw-pod1 -s {pod3} -j ACCEPT"),
        Policy::AllowAll => "-A cali-tw-pod1 -j ACCEPT".to_owned(),
    };
    let (input, output) = match has_ipvs {
        true => (
            format!(
                "-A cali-INPUT -j MARK --set-xmark 0/{ENDPOINT_MARK}\n\
                 -A cali-INPUT -j cali-forward-check\n\
                 -A cali-INPUT -m mark ! --mark 0/{ENDPOINT_MARK} -j RETURN"
            ),
            format!(
                "-A cali-OUTPUT -m mark ! --mark 0/{ENDPOINT_MARK} -j cali-forward-endpoint-mark"
            ),
        ),
        false => Default::default(),
    };
    format!(
        "*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:cali-INPUT - [0:0]
:cali-FORWARD - [0:0]
:cali-OUTPUT - [0:0]
:cali-forward-check - [0:0]
:cali-set-endpoint-mark - [0:0]
:cali-forward-endpoint-mark - [0:0]
:cali-wl-to-host - [0:0]
:cali-tw-pod1 - [0:0]
-A INPUT -j cali-INPUT
-A FORWARD -j cali-FORWARD
-A OUTPUT -j cali-OUTPUT
{input}
-A cali-INPUT -i veth-+ -g cali-wl-to-host
-A cali-wl-to-host -j ACCEPT
-A cali-forward-check -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A cali-forward-check -p tcp -m multiport --dports 30000:32767 -m set --match-set {set} dst -g cali-set-endpoint-mark
-A cali-forward-check -p udp -m multiport --dports 30000:32767 -m set --match-set {set} dst -g cali-set-endpoint-mark
-A cali-forward-check -m set ! --match-set {set} dst -j cali-set-endpoint-mark
-A cali-set-endpoint-mark -j MARK --set-xmark 0x100000/{ENDPOINT_MARK}
{output}
-A cali-forward-endpoint-mark -o veth-pod1 -j cali-tw-pod1
-A cali-forward-endpoint-mark -j MARK --set-xmark 0/{ENDPOINT_MARK}
-A cali-FORWARD -o veth-pod1 -j cali-tw-pod1
-A cali-tw-pod1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
{allow}
-A cali-tw-pod1 -p tcp -j REJECT --reject-with tcp-reset
-A cali-tw-pod1 -j REJECT
COMMIT
"
    )
}

/// Each way to pod1: the client, and the frontends of both protocols and families.
fn ways() -> Vec<(&'static str, String)> {
    let pod = at("10.244.1.2", "fd00:244:1::2", 8080, 5353);
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    let load_balancer = at("198.51.100.2", "2001:db8:51::2", 80, 53);
    let node_port = at("172.18.0.2", "fd00:172:18::2", 30080, 30053);
    let services = [cluster_ip, load_balancer, node_port].concat();
    let outside = services.clone();
    let inside = pod.into_iter().chain(services).map(|to| ("pod3", to));
    inside
        .chain(outside.into_iter().map(|to| ("ext", to)))
        .collect()
}

/// The number of requests of each way: twelve for a client and a frontend, over both protocols and families.
const TIMES: usize = 3;

/// Returns whether a request of `host` is answered.
///
/// Felix' rules refuse what they deny. A busy machine may leave a permitted request without an answer, so
/// the client then tries again.
fn is_answered(host: &Host, frontend: &str) -> bool {
    let (protocol, to) = frontend.split_once(' ').unwrap();
    let ask = || match protocol {
        "tcp" => host.ask_tcp(to),
        _ => host.ask_udp(to),
    };
    let mut answers = std::iter::repeat_with(ask).take(3);
    let answer = answers.find(|answer| *answer != Answer::Timeout);
    answer.is_some_and(|answer| answer.backend().is_some())
}

/// Returns the number of answered requests of each way; ways without any are missing.
fn answered<D: Subject>(scene: &Scene<D>) -> BTreeMap<String, usize> {
    let answered = std::thread::scope(|scope| {
        let ask = |(client, frontend): (&'static str, String)| {
            let host = scene.client(client);
            scope.spawn(move || {
                let count = (0..TIMES).filter(|_| is_answered(host, &frontend)).count();
                (format!("{client} to {frontend}"), count)
            })
        };
        let asking: Vec<_> = ways().into_iter().map(ask).collect();
        let answers = asking.into_iter().map(|asking| asking.join().unwrap());
        answers.collect::<Vec<_>>()
    });
    let is_answered = |(_, count): &(_, usize)| *count > 0;
    answered.into_iter().filter(is_answered).collect()
}

/// Returns the answers that `policy` permits: all requests of a way, or none.
fn permitted(policy: Policy) -> BTreeMap<String, usize> {
    let is_permitted = |(client, _): &(&str, String)| match policy {
        Policy::DenyAll => false,
        Policy::AllowPod3 => *client == "pod3",
        Policy::AllowAll => true,
    };
    let ways = ways().into_iter().filter(is_permitted);
    ways.map(|(client, to)| (format!("{client} to {to}"), TIMES))
        .collect()
}

fn scene<D: Subject>(form: ServiceAddresses) -> Scene<D> {
    let scene = Scene::configured(services(), form, |_| {});
    // Two flows of a client to one endpoint, one of them through a frontend, must not have the same port.
    for client in ["ext", "pod3"] {
        let file = "/proc/sys/net/ipv4/ip_local_port_range";
        let write = || std::fs::write(file, "1024 65535").unwrap();
        scene.client(client).run(write);
    }
    // With the kernel's limits, some denied datagrams would get no ICMP error, and the client would wait 1.5 s
    // for each.
    for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
        let file = format!("/proc/sys/net/{limit}");
        let write = || std::fs::write(&file, "0").unwrap();
        scene.client("node").run(write);
    }
    scene
}

/// Returns Services of which `web` has only pod1.
fn services() -> Services {
    Services::dual().edit("web", |service| {
        *service = service.clone().endpoints(&[POD1]);
    })
}

with_each_dataplane!(
    a_policy_of_calico_with_iptables_legacy_holds_for_every_frontend_of_a_service,
    a_policy_of_calico_with_iptables_nft_holds_for_every_frontend_of_a_service,
);

fn a_policy_of_calico_with_iptables_legacy_holds_for_every_frontend_of_a_service<D: Subject>() {
    a_policy_holds::<D>(Iptables::Legacy);
}

fn a_policy_of_calico_with_iptables_nft_holds_for_every_frontend_of_a_service<D: Subject>() {
    a_policy_holds::<D>(Iptables::Nft);
}

fn a_policy_holds<D: Subject>(iptables: Iptables) {
    if !has_iptables() {
        return;
    }
    let mut scene = scene::<D>(D::FORM);
    for policy in [Policy::AllowAll, Policy::DenyAll, Policy::AllowPod3] {
        let node = scene.client("node");
        Felix { node, iptables }.start(policy);
        assert_eq!(answered(&scene), permitted(policy), "{policy:?}");
        // Felix continues while our process is replaced.
        scene.restart();
        scene.program(services());
        assert_eq!(answered(&scene), permitted(policy), "{policy:?}, restarted");
    }
}

/// A Pod can fill the map of saved marks. Felix' mark says that a policy applies, so packets must keep it.
#[test]
fn a_policy_of_calico_holds_at_frontends_with_policy_local_while_the_map_of_marks_is_full() {
    lab::test(|| {
        if !has_iptables() {
            return;
        }
        let services = services().edit("web", |web| web.external_policy = TrafficPolicy::Local);
        let mut scene: Scene = scene(ServiceAddresses::Routes);
        scene.program(services);
        fill_map(&scene);
        for policy in [Policy::AllowAll, Policy::DenyAll, Policy::AllowPod3] {
            let (node, iptables) = (scene.client("node"), Iptables::Nft);
            Felix { node, iptables }.start(policy);
            assert_eq!(answered(&scene), permitted(policy), "{policy:?}");
        }
    });
}

/// Shows that the tests above would find a bypass of the policy: with routes on `lo`, Felix takes each service
/// address for an address of the host.
#[test]
fn without_the_device_a_policy_of_calico_is_bypassed() {
    lab::test(|| {
        if !has_iptables() {
            return;
        }
        let scene: Scene = scene(ServiceAddresses::Loopback);
        let (node, iptables) = (scene.client("node"), Iptables::Legacy);
        Felix { node, iptables }.start(Policy::DenyAll);
        let mut open = permitted(Policy::AllowAll);
        open.retain(|way, _| !way.contains("10.244.1.2") && !way.contains("fd00:244:1::2"));
        assert_eq!(answered(&scene), open);
    });
}
