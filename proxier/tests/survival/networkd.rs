//! The real systemd-networkd (Debian's package systemd) beside the daemon.
//!
//! It runs without systemd and udev, and has a D-Bus of its own, so that `networkctl` reaches it.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::net::Cluster;
use tempfile::TempDir;

use super::carrier::{ONLY_REPAIRS, answers, carrier_addresses, routes, scene, scene_with, sh};
use super::dataplanes::Kernel;

/// Keeps networkd from the other devices of the lab, whose addresses it would delete.
const OTHERS: (&str, &str) = (
    "05-others.network",
    "[Match]\nName=!kube-ipvs0\n[Link]\nUnmanaged=yes\n",
);

/// Matches each device that no earlier file matches, as the files of many images do.
const EVERY_DEVICE: (&str, &str) = ("50-all.network", "[Match]\nName=*\n[Network]\nDHCP=no\n");

/// The documented file.
const UNMANAGED: (&str, &str) = (
    "10-kube-ipvs0.network",
    include_str!("../../../deploy/unmanaged/10-kube-ipvs0.network"),
);

/// A running networkd.
struct Networkd {
    process: Child,
    directory: TempDir,
}

impl Networkd {
    /// Starts networkd with `files`, and waits until it has a state for the carrier.
    fn start(cluster: &Cluster, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let configuration = directory.path().join("network");
        fs::create_dir(&configuration).unwrap();
        for (name, text) in files {
            fs::write(configuration.join(name), text).unwrap();
        }
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new("/usr/bin/unshare");
        command
            .args(["--mount", "/bin/sh", "-c", include_str!("networkd.sh")])
            .arg(&configuration)
            .env("SYSTEMD_LOG_LEVEL", "debug")
            .env("SYSTEMD_LOG_TARGET", "console")
            .stdin(Stdio::null())
            .stderr(log);
        let process = cluster.node.run(|| command.spawn()).unwrap();
        let networkd = Self { process, directory };
        let is_up = lab::await_true(Duration::from_millis(50), || {
            let name = "Successfully acquired requested service name";
            networkd.log().contains(name)
        });
        assert!(is_up, "{}", networkd.log());
        networkd
    }

    /// Runs networkctl and returns its output.
    fn ctl(&self, cluster: &Cluster, command: &str) -> String {
        let pid = self.process.id();
        sh(
            cluster,
            &format!("nsenter --target {pid} --mount networkctl {command}"),
        )
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Drop for Networkd {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

#[test]
fn with_the_documented_file_networkd_leaves_the_device_and_its_routes_alone() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&ONLY_REPAIRS);
        daemon.start();
        daemon.eventually("the Service answers", || answers(&cluster.pod3));
        let before = routes(&cluster);
        let link = || sh(&cluster, "ip -details -oneline link show dev kube-ipvs0");
        let link_before = link();
        for _ in 0..2 {
            let networkd = Networkd::start(&cluster, &[OTHERS, UNMANAGED, EVERY_DEVICE]);
            daemon.eventually("networkd knows that the device is not its own", || {
                let links = networkd.ctl(&cluster, "--no-pager list");
                let carrier = links.lines().find(|line| line.contains("kube-ipvs0"));
                carrier.is_some_and(|line| line.ends_with("unmanaged"))
            });
            networkd.ctl(&cluster, "reload");
            networkd.ctl(&cluster, "reconfigure kube-ipvs0");
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(routes(&cluster), before);
            assert_eq!(link(), link_before);
            assert_eq!(carrier_addresses(&cluster), "");
            assert!(answers(&cluster.node) && answers(&cluster.pod3));
        }
        let log = daemon.log();
        assert!(!log.contains("repaired drift"), "{log}");
    });
}

/// Shows the reason for the file: networkd gives the device a link-local address, and deletes all its routes
/// when an administrator runs `networkctl reconfigure`.
#[test]
fn without_the_documented_file_what_networkd_deletes_is_restored_at_once() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&ONLY_REPAIRS);
        daemon.start();
        daemon.eventually("the Service answers", || answers(&cluster.pod3));
        let before = routes(&cluster);
        let networkd = Networkd::start(&cluster, &[OTHERS, EVERY_DEVICE]);
        daemon.eventually("the device has a link-local address", || {
            carrier_addresses(&cluster).contains("fe80::")
        });
        assert!(answers(&cluster.node) && answers(&cluster.pod3));

        assert_eq!(routes(&cluster), before);
        networkd.ctl(&cluster, "reconfigure kube-ipvs0");
        let start = Instant::now();
        let is_repaired = || daemon.log().contains("repaired drift");
        daemon.eventually("the routes are restored", || {
            is_repaired() && routes(&cluster) == before
        });
        println!("restored after {:?}", start.elapsed());
        assert!(answers(&cluster.node) && answers(&cluster.pod3));
    });
}

/// The dataplane nftables has no device, no address, no route and no routing rule, so networkd finds nothing to delete.
#[test]
fn networkd_finds_nothing_of_the_dataplane_nftables() {
    lab::test(|| {
        let (cluster, mut daemon) = scene_with(Kernel::Nftables, &ONLY_REPAIRS);
        let of_kernel = || {
            let show = "route show table all proto 73; ip";
            let commands = format!("ip {show} -6 {show} rule; ip -6 rule; ip -oneline link");
            sh(&cluster, &commands)
        };
        let without = of_kernel();
        daemon.start();
        daemon.eventually("the Service answers", || answers(&cluster.pod3));
        assert_eq!(of_kernel(), without);
        // Without the values of counters.
        let list = "nft --stateless list table inet ipvs-proxier-maps";
        let table = sh(&cluster, list);
        for _ in 0..2 {
            let networkd = Networkd::start(&cluster, &[OTHERS, EVERY_DEVICE]);
            networkd.ctl(&cluster, "reload");
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(of_kernel(), without);
            assert_eq!(sh(&cluster, list), table);
            assert!(answers(&cluster.node) && answers(&cluster.pod3));
        }
        let log = daemon.log().replace("repaired=0", "");
        assert!(!log.contains("repaired"), "{log}");
    });
}
