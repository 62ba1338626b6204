//! Open connections survive edits of their Service that remove frontends or change the policy.

use std::collections::BTreeSet;

use ipvs_netlink as ipvs;
use lab::net::{Answer, Cluster, Connection, Host};
use serde_json::{Value, json};

use super::daemon::{Daemon, web};
use super::{AT_ONCE, POD_B1, POD1, POD2, serving};

/// The Pod networks, so that pod3 is inside the cluster and ext outside.
const INSIDE: [&str; 2] = ["--cluster-cidr", "10.244.0.0/16"];

/// The fields of Service web that the edits change.
struct Edited {
    policy: &'static str,
    ingress: &'static [&'static str],
    external: &'static [&'static str],
    node_port: u16,
}

impl Edited {
    fn apply(&self, daemon: &Daemon) {
        let mut web = web(&json!({}));
        let ingress = self.ingress.iter().map(|ip| json!({"ip": ip}));
        web["spec"]["type"] = json!("LoadBalancer");
        web["spec"]["externalTrafficPolicy"] = json!(self.policy);
        web["spec"]["healthCheckNodePort"] = json!(32_100);
        web["spec"]["externalIPs"] = json!(self.external);
        web["spec"]["ports"][0]["nodePort"] = json!(self.node_port);
        web["status"]["loadBalancer"]["ingress"] = ingress.collect::<Value>();
        daemon.api.apply(web);
    }
}

const BEFORE: Edited = Edited {
    policy: "Local",
    ingress: &["198.51.100.1", "198.51.100.2"],
    external: &["198.51.100.3"],
    node_port: 30_080,
};

/// The frontends of [`BEFORE`] that edits remove.
const LOAD_BALANCER: &str = "198.51.100.2:80";
const EXTERNAL: &str = "198.51.100.3:80";
const NODE_PORT: &str = "172.18.0.2:30080";
/// A frontend of all edits.
const KEPT: &str = "198.51.100.1:80";

/// An open connection, its client, frontend, and the Pod that answers.
struct Open {
    connection: Connection,
    name: String,
    pod: String,
}

/// Opens connections of `client` to `frontend` until all of `pods` answer one.
fn open(client: &Host, frontend: &str, pods: &[&str]) -> Vec<Open> {
    let mut all = Vec::new();
    for _ in 0..20 {
        let connection = client.connect(frontend).unwrap();
        let pod = connection.greeting().backend().unwrap().to_owned();
        let name = format!("{} to {frontend}", client.name());
        all.push(Open {
            connection,
            name,
            pod,
        });
        let has = |pod: &&str| all.iter().any(|open| open.pod == *pod);
        if all.len() >= 2 && pods.iter().all(has) {
            return all;
        }
    }
    panic!(
        "{} to {frontend} reaches not all of {pods:?}",
        client.name()
    );
}

/// Returns the Pod that answers a connection of `client`, which is then reset: the kernel counts a
/// closed one for two minutes.
fn ask(client: &Host, frontend: &str) -> Option<String> {
    let connection = client.connect(frontend).ok()?;
    let pod = connection.greeting().backend().map(str::to_owned);
    connection.reset();
    pod
}

#[track_caller]
fn assert_alive(open: &mut [Open], after: &str) {
    for Open {
        connection,
        name,
        pod,
    } in open
    {
        let answer = connection.ask();
        let is_alive = matches!(&answer, Answer::Reply { backend, .. } if backend == pod);
        assert!(
            is_alive,
            "{name} after {after}: {answer:?} instead of {pod}"
        );
    }
}

/// Waits until new connections of both clients to `frontend` are refused.
fn await_refusal(cluster: &Cluster, daemon: &Daemon, frontend: &str) {
    for client in [&cluster.pod3, &*cluster.ext] {
        let what = format!("{} to {frontend} is refused", client.name());
        daemon.eventually(&what, || match client.connect(frontend) {
            Ok(connection) => {
                connection.reset();
                false
            }
            Err(answer) => answer == Answer::Refused,
        });
    }
}

fn virtual_servers() -> BTreeSet<String> {
    let services = ipvs::Client::open().unwrap().services().unwrap();
    let keys = services.iter().map(|entry| entry.service.key.to_string());
    keys.collect()
}

fn routes(cluster: &Cluster) -> String {
    let show = ["ip", "route", "show", "table", "local"];
    cluster.node.exec(&show)
}

fn rules(cluster: &Cluster) -> String {
    let list = ["/usr/sbin/nft", "list", "table", "inet", "ipvs-proxier"];
    cluster.node.exec(&list)
}

#[test]
fn connections_survive_edits_that_remove_frontends_or_change_the_policy() {
    lab::test(|| {
        let (cluster, mut daemon, connections) = serving(&[&AT_ONCE[..], &INSIDE].concat());
        drop(connections);
        BEFORE.apply(&daemon);
        daemon.endpoints(&[POD1, POD_B1]);
        daemon.await_endpoints(&[POD1, POD_B1]);
        for frontend in [KEPT, LOAD_BALANCER, EXTERNAL, NODE_PORT] {
            daemon.eventually(frontend, || {
                ask(&cluster.ext, frontend).as_deref() == Some("pod1")
            });
        }
        // Policy Local: clients inside reach both endpoints, clients outside only the local one.
        let mut alive = Vec::new();
        for frontend in [KEPT, LOAD_BALANCER, EXTERNAL, NODE_PORT] {
            alive.extend(open(&cluster.pod3, frontend, &["pod1", "podB1"]));
            alive.extend(open(&cluster.ext, frontend, &["pod1"]));
        }

        let mut edited = Edited {
            ingress: &["198.51.100.1"],
            ..BEFORE
        };
        edited.apply(&daemon);
        await_refusal(&cluster, &daemon, LOAD_BALANCER);
        assert_alive(&mut alive, "the removal of a load-balancer address");

        edited.external = &[];
        edited.apply(&daemon);
        await_refusal(&cluster, &daemon, EXTERNAL);
        assert_alive(&mut alive, "the removal of an external IP");

        // This edit happens while no daemon runs.
        daemon.kill();
        edited.node_port = 30_081;
        edited.apply(&daemon);
        assert_alive(&mut alive, "SIGKILL");
        daemon.start();
        await_refusal(&cluster, &daemon, NODE_PORT);
        assert_alive(&mut alive, "the change of the node port");

        for (policy, pods) in [("Cluster", &["pod1", "podB1"][..]), ("Local", &["pod1"])] {
            edited.policy = policy;
            edited.apply(&daemon);
            let what = format!("clients outside reach {pods:?} of policy {policy}");
            daemon.eventually(&what, || {
                let answers: BTreeSet<_> = (0..4).filter_map(|_| ask(&cluster.ext, KEPT)).collect();
                answers.iter().eq(pods)
            });
            assert_alive(&mut alive, policy);
        }
        edited.policy = "Cluster";
        edited.apply(&daemon);
        for frontend in [LOAD_BALANCER, EXTERNAL, NODE_PORT] {
            await_refusal(&cluster, &daemon, frontend);
        }
        daemon.kill();
        let rounds = |daemon: &Daemon| daemon.log().matches("synced").count();
        let before = rounds(&daemon);
        daemon.start();
        // The change of an endpoint shows that the first round is over.
        daemon.endpoints(&[POD1, POD2, POD_B1]);
        daemon.eventually("the next daemon's first round", || rounds(&daemon) > before);
        assert_alive(&mut alive, "another SIGKILL");
        let removed = [LOAD_BALANCER, EXTERNAL, NODE_PORT].map(|it| format!("TCP {it}"));
        let found = virtual_servers();
        assert!(removed.iter().all(|it| found.contains(it)), "{found:?}");
        let status = daemon.command("status").output().unwrap();
        let status = String::from_utf8(status.stdout).unwrap();
        for server in &removed {
            let line = status.lines().find(|line| line.starts_with(server));
            assert!(line.unwrap().contains("(retired, at most"), "{status}");
        }
        let plan = daemon.command("plan").args(INSIDE).output().unwrap();
        assert!(plan.status.success(), "{plan:?}");

        for open in alive {
            open.connection.reset();
        }
        daemon.eventually("what is retired is deleted", || {
            let is_planned = |server: &String| {
                let ports = [":80", ":30081"].iter().any(|port| server.ends_with(port));
                server.starts_with("TCP") && ports && !removed.contains(server)
            };
            virtual_servers().iter().all(is_planned)
        });
        daemon.eventually("its routes and guards are deleted", || {
            let (routes, rules) = (routes(&cluster), rules(&cluster));
            let traces = ["198.51.100.2", "198.51.100.3", "ranges-tcp", "30080"];
            traces
                .iter()
                .all(|it| !routes.contains(it) && !rules.contains(it))
        });
    });
}
