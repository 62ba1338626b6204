//! ARP on the link between the node and client ext, which has a route to load-balancer addresses on that link.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::net::Host;
use proxier::testing::clock;
use proxier::testing::dataplane::nftables::Nftables;

use super::scene::{Scene, Subject, nft};
use super::services::Services;
use crate::check;

const LOAD_BALANCER: &str = "198.51.100.2";
const EXTERNAL: &str = "198.51.100.1";

fn ip(host: &Host, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    host.exec(&[&["ip"][..], &words].concat())
}

/// Returns a scene in which ext asks for load-balancer and external addresses on its link.
///
/// ext counts the ARP requests that it receives, by sender.
fn scene<D: Subject>(hides_arp: bool) -> Scene<D> {
    let scene = Scene::configured(Services::dual(), D::FORM, |config| {
        config.hides_arp = hides_arp;
    });
    let ext = scene.client("ext");
    ip(ext, "route add 198.51.100.0/24 dev eth0 scope link");
    nft(
        ext,
        "table arp requests { chain in {
            type filter hook input priority 0
            arp operation request arp saddr ip 198.51.100.2 counter
            arp operation request arp saddr ip 203.0.113.1 counter
        }; }",
    );
    scene
}

/// Returns the ARP requests that ext received from the load balancer's address and from the node's.
fn requests(ext: &Host) -> (u32, u32) {
    let listed = ext.exec(&["/usr/sbin/nft", "list", "table", "arp", "requests"]);
    let count = |sender: &str| {
        let line = listed.lines().find(|line| line.contains(sender)).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| *word == "packets").unwrap();
        words[at + 1].parse().unwrap()
    };
    (count(LOAD_BALANCER), count("203.0.113.1"))
}

/// Forgets the neighbours of ext and of the node.
fn forget(scene: &Scene) {
    ip(scene.client("ext"), "neighbour flush all");
    ip(scene.client("node"), "neighbour flush dev ext0");
}

fn arp_settings(node: &Host) -> String {
    let script = "cat /proc/sys/net/ipv4/conf/*/arp_ignore /proc/sys/net/ipv4/conf/*/arp_announce";
    node.exec(&["/bin/sh", "-c", script])
}

fn at(address: &str) -> [String; 1] {
    [format!("tcp {address}:80")]
}

const NODE: [&str; 1] = ["tcp 203.0.113.1:22"];

/// Shows the reason for the table: the answers of the kernel without it.
#[test]
fn without_the_table_the_node_claims_load_balancer_addresses() {
    lab::test(|| {
        let scene: Scene = scene(false);
        let masqueraded = ["pod1/node", "podB1/node"];
        check(&scene, "ext", &at(LOAD_BALANCER), &masqueraded);
        let neighbour = ip(scene.client("ext"), "neighbour show 198.51.100.2");
        assert!(neighbour.contains("lladdr"), "{neighbour}");
        ip(scene.client("node"), "neighbour flush dev ext0");
        check(&scene, "ext", &at(LOAD_BALANCER), &masqueraded);
        assert!(requests(scene.client("ext")).0 > 0);
    });
}

/// No service address is local, so nothing needs to be hidden. A client that knows the way gets its answer.
#[test]
fn with_nftables_the_node_claims_no_load_balancer_address() {
    lab::test(|| {
        let scene: Scene<Nftables> = scene(false);
        let ext = scene.client("ext");
        for address in [LOAD_BALANCER, EXTERNAL] {
            let answers = scene.ask("ext", &at(address)[0], 1);
            assert!(!answers.iter().any(|it| it.contains("pod")), "{answers:?}");
            let neighbour = ip(ext, &format!("neighbour show {address}"));
            assert!(!neighbour.contains("lladdr"), "{neighbour}");
        }
        ip(ext, "route replace 198.51.100.0/24 via 203.0.113.1");
        check(
            &scene,
            "ext",
            &at(LOAD_BALANCER),
            &["pod1/node", "podB1/node"],
        );
        assert_eq!(
            requests(ext).0,
            0,
            "requests of the load balancer's address"
        );
    });
}

#[test]
fn external_addresses_are_neither_claimed_nor_used_on_links() {
    lab::test(|| {
        let mut scene: Scene = scene(true);
        let settings = arp_settings(scene.client("node"));
        let masqueraded = ["pod1/node", "podB1/node"];
        for address in [LOAD_BALANCER, EXTERNAL] {
            let answers = scene.ask("ext", &at(address)[0], 1);
            assert!(!answers.iter().any(|it| it.contains("pod")), "{answers:?}");
            let neighbour = ip(scene.client("ext"), &format!("neighbour show {address}"));
            assert!(!neighbour.contains("lladdr"), "{neighbour}");
        }
        let host = NODE.map(str::to_owned);
        check(&scene, "ext", &host, &["HOST/client"]);

        // A client that knows the node's hardware address gets its answer. To send it, the node asks for the
        // client from its own address.
        let link = ip(scene.client("node"), "link show ext0");
        let hardware = link.split("link/ether ").nth(1).unwrap();
        let hardware = hardware.split(' ').next().unwrap();
        let known = format!("neighbour replace 198.51.100.2 lladdr {hardware} dev eth0");
        forget(&scene);
        ip(scene.client("ext"), &known);
        let before = requests(scene.client("ext"));
        check(&scene, "ext", &at(LOAD_BALANCER), &masqueraded);
        let after = requests(scene.client("ext"));
        assert_eq!(after.0, 0, "requests of the load balancer's address");
        assert!(after.1 > before.1, "{before:?}, {after:?}");

        // The answers of a speaker with raw sockets, as MetalLB's, reach the client.
        ip(scene.client("ext"), "neighbour del 198.51.100.2 dev eth0");
        forget(&scene);
        let mut speaker = Speaker::start(scene.client("node"));
        check(&scene, "ext", &at(LOAD_BALANCER), &masqueraded);
        speaker.0.kill().unwrap();

        // The kernel still answers for an address of an interface.
        ip(scene.client("node"), "address add 198.51.100.2/32 dev ext0");
        resync(&mut scene);
        forget(&scene);
        check(&scene, "ext", &at(LOAD_BALANCER), &masqueraded);
        ip(scene.client("node"), "address del 198.51.100.2/32 dev ext0");
        resync(&mut scene);
        forget(&scene);
        let answers = scene.ask("ext", &at(LOAD_BALANCER)[0], 1);
        assert!(!answers.iter().any(|it| it.contains("pod")), "{answers:?}");
        assert_eq!(arp_settings(scene.client("node")), settings);

        // A removed Service leaves no address behind.
        scene.program(Services::dual().without("web"));
        let list = ["/usr/sbin/nft", "list", "table", "arp", "ipvs-proxier"];
        let listed = scene.client("node").exec(&list);
        assert!(!listed.contains(LOAD_BALANCER), "{listed}");
        assert!(listed.contains("198.51.100.4"), "{listed}");
    });
}

fn resync(scene: &mut Scene) {
    let applied = scene.proxier.resync(clock::since_boot()).unwrap();
    assert_eq!(applied.failures().count(), 0);
}

/// A program on the node that answers ARP requests for the load balancer's address by a raw socket.
struct Speaker(Child);

impl Speaker {
    fn start(node: &Host) -> Self {
        let script = include_str!("arp_speaker.py");
        let mut child = node.run(|| {
            Command::new("/usr/bin/python3")
                .args(["-c", script, "ext0", LOAD_BALANCER])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        // The script closes its output when it listens.
        let mut output = child.stdout.take().unwrap();
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        std::thread::sleep(lab::patience(Duration::from_millis(10)));
        Self(child)
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
