//! The values of every flag.

use std::collections::BTreeSet;

use proxier::testing::config::FLAGS;

use crate::programs::{Outcome, difference, kube_proxy, ours};

/// Accepted flags, and what the written file has then, besides the defaults: `PATH=VALUE`, as JSON.
#[rustfmt::skip]
const ACCEPTED: &[(&str, &str)] = &[
    ("", ""),
    ("--bind-address=::", "bindAddress=\"::\""),
    ("--bind-address=10.0.0.1", "bindAddress=\"10.0.0.1\""),
    ("--bind-address=", ""),
    ("--bind-address-hard-fail", "bindAddressHardFail=true"),
    ("--bind-address-hard-fail=T", "bindAddressHardFail=true"),
    ("--bind_address_hard_fail=0", ""),
    ("--boot-id-file=/x", ""),
    ("--cleanup=false", ""),
    ("--cluster-cidr=10.0.0.5/8", "clusterCIDR=\"10.0.0.5/8\""),
    ("--cluster-cidr=10.0.0.0/8,fd00::/8", "clusterCIDR=\"10.0.0.0/8,fd00::/8\""),
    ("--cluster-cidr=x --detect-local-mode=NodeCIDR", "clusterCIDR=\"x\" detectLocalMode=\"NodeCIDR\""),
    ("--config-sync-period=1ns", "configSyncPeriod=\"1ns\""),
    ("--conntrack-max-per-core=0 --conntrack-min=0", "conntrack.maxPerCore=0 conntrack.min=0"),
    ("--conntrack-min=2147483647", "conntrack.min=2147483647"),
    ("--conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal=true"),
    ("--conntrack-tcp-timeout-close-wait=0", "conntrack.tcpCloseWaitTimeout=\"0s\""),
    ("--conntrack-tcp-timeout-established=36h", "conntrack.tcpEstablishedTimeout=\"36h0m0s\""),
    ("--conntrack-udp-timeout=1.5s", "conntrack.udpTimeout=\"1.5s\""),
    ("--conntrack-udp-timeout-stream=1m", "conntrack.udpStreamTimeout=\"1m0s\""),
    ("--detect-local-mode=", ""),
    ("--detect-local-mode=BridgeInterface --pod-bridge-interface=cni0", "detectLocalMode=\"BridgeInterface\" detectLocal.bridgeInterface=\"cni0\""),
    ("--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth", "detectLocalMode=\"InterfaceNamePrefix\" detectLocal.interfaceNamePrefix=\"veth\""),
    ("--feature-gates=A=true,B=false --feature-gates=C=true", "featureGates.A=true featureGates.B=false featureGates.C=true"),
    ("--feature-gates=AllowServiceExternalIPs=false", "featureGates.AllowServiceExternalIPs=false"),
    ("--feature-gates=PreferSameTrafficDistribution=true", "featureGates.PreferSameTrafficDistribution=true"),
    ("--healthz-bind-address=", ""),
    ("--healthz-bind-address=[::]:1", "healthzBindAddress=\"[::]:1\""),
    ("--healthz-bind-address=10.0.0.1:65535", "healthzBindAddress=\"10.0.0.1:65535\""),
    ("--healthz-port=0", ""),
    ("--healthz-port=99", ""),
    ("--hostname-override=Node-A", "hostnameOverride=\"node-a\""),
    ("--hostname-override=", ""),
    ("--init-only", ""),
    ("--iptables-localhost-nodeports=false", "iptables.localhostNodePorts=false"),
    ("--iptables-masquerade-bit=0", "iptables.masqueradeBit=0"),
    ("--iptables-masquerade-bit=31", "iptables.masqueradeBit=31"),
    ("--iptables-min-sync-period=0", "iptables.minSyncPeriod=\"0s\""),
    ("--iptables-sync-period=77s", "iptables.syncPeriod=\"1m17s\""),
    ("--iptables-sync-period=77s --proxy-mode=ipvs", IPVS),
    ("--iptables-sync-period=77s --proxy-mode=nftables --masquerade-all --iptables-masquerade-bit=3", "mode=\"nftables\" iptables.syncPeriod=\"0s\" iptables.minSyncPeriod=\"0s\" nftables.syncPeriod=\"1m17s\" nftables.minSyncPeriod=\"1s\" nftables.masqueradeAll=true iptables.masqueradeBit=3 nodePortAddresses=[\"primary\"]"),
    ("--ipvs-exclude-cidrs=10.0.0.0/8 --ipvs-exclude-cidrs=fd00::/8,11.0.0.0/8", "ipvs.excludeCIDRs=[\"10.0.0.0/8\",\"fd00::/8\",\"11.0.0.0/8\"]"),
    ("--ipvs-min-sync-period=5s", ""),
    ("--ipvs-sync-period=9s", ""),
    ("--ipvs-scheduler=wrr", "ipvs.scheduler=\"wrr\""),
    ("--ipvs-strict-arp=1", "ipvs.strictARP=true"),
    ("--ipvs-tcp-timeout=5s --ipvs-tcpfin-timeout=6s --ipvs-udp-timeout=7s", "ipvs.tcpTimeout=\"5s\" ipvs.tcpFinTimeout=\"6s\" ipvs.udpTimeout=\"7s\""),
    ("--kube-api-burst=+16", "clientConnection.burst=16"),
    ("--kube-api-burst=0", "clientConnection.burst=0"),
    ("--kube-api-content-type=application/json", "clientConnection.contentType=\"application/json\""),
    ("--kube-api-qps=0.1", "clientConnection.qps=0.1"),
    ("--kube-api-qps=-1", "clientConnection.qps=-1"),
    ("--kubeconfig=/etc/kube.conf", "clientConnection.kubeconfig=\"/etc/kube.conf\""),
    ("--kubeconfig=", ""),
    ("--log-flush-frequency=1ms", "logging.flushFrequency=\"1ms\""),
    ("--log-json-info-buffer-size=1Ki --feature-gates=LoggingAlphaOptions=true", "logging.options.json.infoBufferSize=\"1Ki\" featureGates.LoggingAlphaOptions=true"),
    ("--log-text-split-stream --feature-gates=LoggingAlphaOptions=true", "logging.options.text.splitStream=true featureGates.LoggingAlphaOptions=true"),
    ("--log-json-split-stream --feature-gates=AllAlpha=true", "logging.options.json.splitStream=true featureGates.AllAlpha=true"),
    ("--log-text-info-buffer-size=0", ""),
    ("--logging-format=json", "logging.format=\"json\""),
    ("--machine-id-file=/x", ""),
    ("--masquerade-all=TRUE", "iptables.masqueradeAll=true"),
    ("--masquerade-all --masquerade-all=false", ""),
    ("--master=https://192.0.2.1", ""),
    ("--metrics-bind-address=0.0.0.0:10249", "metricsBindAddress=\"0.0.0.0:10249\""),
    ("--metrics-bind-address=", ""),
    ("--metrics-port=0", ""),
    ("--nodeport-addresses=10.0.0.0/8 --nodeport-addresses=fd00::/8", "nodePortAddresses=[\"10.0.0.0/8\",\"fd00::/8\"]"),
    ("--nodeport-addresses=primary", "nodePortAddresses=[\"primary\"]"),
    ("--nodeport-addresses=", "nodePortAddresses=[]"),
    ("--oom-score-adj=-1000", "oomScoreAdj=-1000"),
    ("--pod-bridge-interface=cni0", "detectLocal.bridgeInterface=\"cni0\""),
    ("--pod-interface-name-prefix=veth", "detectLocal.interfaceNamePrefix=\"veth\""),
    ("--profiling", "enableProfiling=true"),
    ("--proxy-mode=", ""),
    ("--proxy-mode=iptables", ""),
    ("--proxy-mode=ipvs", IPVS),
    ("--show-hidden-metrics-for-version=1.35", "showHiddenMetricsForVersion=\"1.35\""),
    ("-v=2", "logging.verbosity=2"),
    ("-v 3", "logging.verbosity=3"),
    ("-v4", "logging.verbosity=4"),
    ("--v=2147483647", "logging.verbosity=2147483647"),
    ("--version=false", ""),
    ("--vmodule=a=1,b*=2", "logging.vmodule=[{\"filePattern\":\"a\",\"verbosity\":1},{\"filePattern\":\"b*\",\"verbosity\":2}]"),
];

/// The changes that the mode ipvs makes.
const IPVS: &str = "mode=\"ipvs\" iptables.syncPeriod=\"0s\" iptables.minSyncPeriod=\"0s\" \
                    ipvs.syncPeriod=\"30s\" ipvs.minSyncPeriod=\"1s\"";

/// Rejected flags, and words of this program's message.
#[rustfmt::skip]
const REJECTED: &[(&str, &str)] = &[
    ("--bind-address=x", "--bind-address: invalid value \"x\": must be an IP address"),
    ("--bind-address=[::1]", "--bind-address: invalid value"),
    ("--bind-address-hard-fail=yes", "--bind-address-hard-fail: invalid value \"yes\": must be true or false"),
    ("--cluster-cidr=", "--cluster-cidr: invalid value \"\": must be a valid CIDR block"),
    ("--cluster-cidr=10.0.0.0", "--cluster-cidr: invalid value \"10.0.0.0\": must be a valid CIDR block"),
    ("--cluster-cidr=10.0.0.0/33", "must be a valid CIDR block"),
    ("--cluster-cidr=10.0.0.0/8,11.0.0.0/8", "must be a single CIDR or a dual-stack pair"),
    ("--cluster-cidr=10.0.0.0/8,fd00::/8,fd01::/16", "must be a single CIDR or a dual-stack pair"),
    ("--cluster-cidr=10.0.0.0/8,x", "--cluster-cidr: invalid value \"x\""),
    ("--config=/nonexistent", "/nonexistent: No such file or directory"),
    ("--config-sync-period=0", "--config-sync-period: invalid value \"0s\": must be greater than 0"),
    ("--conntrack-max-per-core=-1", "--conntrack-max-per-core: invalid value -1: must be greater than or equal to 0"),
    ("--conntrack-min=-1", "--conntrack-min: invalid value -1"),
    ("--conntrack-min=2147483648", "--conntrack-min: invalid value \"2147483648\": must be a 32-bit integer"),
    ("--conntrack-min=1.0", "--conntrack-min: invalid value"),
    ("--conntrack-tcp-timeout-close-wait=-1s", "--conntrack-tcp-timeout-close-wait: invalid value \"-1s\""),
    ("--conntrack-tcp-timeout-established=1d", "--conntrack-tcp-timeout-established: invalid value \"1d\": must be a duration"),
    ("--conntrack-udp-timeout=-1ns", "--conntrack-udp-timeout: invalid value \"-1ns\""),
    ("--conntrack-udp-timeout-stream=5", "--conntrack-udp-timeout-stream: invalid value \"5\""),
    ("--detect-local-mode=clustercidr", "--detect-local-mode: invalid value \"clustercidr\": supported values: \"ClusterCIDR\""),
    ("--detect-local-mode=BridgeInterface", "bridgeInterface: invalid value \"\": must not be empty"),
    ("--detect-local-mode=InterfaceNamePrefix", "interfaceNamePrefix: invalid value \"\": must not be empty"),
    ("--feature-gates=A", "--feature-gates: invalid value \"A\""),
    ("--feature-gates=WatchList=maybe", "--feature-gates: invalid value \"WatchList=maybe\": must be NAME=true or NAME=false"),
    ("--feature-gates=PreferSameTrafficDistribution=false", "PreferSameTrafficDistribution to false, feature is locked to true"),
    ("--feature-gates=MultiCIDRServiceAllocator=false", "MultiCIDRServiceAllocator to false, feature is locked to true"),
    ("--foo", "unexpected argument '--foo'"),
    ("--healthz-bind-address=foo", "--healthz-bind-address: invalid value \"foo\": must be IP or IP:port"),
    ("--healthz-bind-address=1.2.3.4:99999", "--healthz-bind-address: invalid value"),
    ("--healthz-bind-address=1.2.3.4:0", "--healthz-bind-address: invalid value \"0\": must be a valid port"),
    ("--healthz-bind-address=::", "--healthz-bind-address: invalid value \"::\": must be IP:port"),
    ("--healthz-bind-address=[::1]", "--healthz-bind-address: invalid value \"[::1]\""),
    ("--healthz-port=x", "--healthz-port: invalid value \"x\""),
    ("--iptables-masquerade-bit=-1", "--iptables-masquerade-bit: invalid value -1: must be within the range [0, 31]"),
    ("--iptables-masquerade-bit=32", "--iptables-masquerade-bit: invalid value 32: must be within the range [0, 31]"),
    ("--iptables-min-sync-period=-1s", "--iptables-min-sync-period: invalid value \"-1s\": must be greater than or equal to 0"),
    ("--iptables-sync-period=0", "--iptables-sync-period: invalid value \"0s\": must be greater than 0"),
    ("--iptables-sync-period=1us", "must be greater than or equal to iptables.minSyncPeriod (1s)"),
    ("--ipvs-exclude-cidrs=foo --proxy-mode=ipvs", "--ipvs-exclude-cidrs: invalid value \"foo\": must be a valid CIDR"),
    ("--ipvs-min-sync-period=2m --proxy-mode=ipvs", "ipvs.syncPeriod: invalid value \"30s\": must be greater than or equal to ipvs.minSyncPeriod (2m0s)"),
    ("--ipvs-min-sync-period=-1s --proxy-mode=ipvs", "--ipvs-min-sync-period: invalid value \"-1s\""),
    ("--ipvs-sync-period=0 --proxy-mode=ipvs", "--ipvs-sync-period: invalid value \"0s\": must be greater than 0"),
    ("--ipvs-sync-period=abc", "--ipvs-sync-period: invalid value \"abc\": must be a duration"),
    ("--ipvs-tcp-timeout=-1s --proxy-mode=ipvs", "--ipvs-tcp-timeout: invalid value \"-1s\""),
    ("--ipvs-tcpfin-timeout=-1s --proxy-mode=ipvs", "--ipvs-tcpfin-timeout: invalid value \"-1s\""),
    ("--ipvs-udp-timeout=-1s --proxy-mode=ipvs", "--ipvs-udp-timeout: invalid value \"-1s\""),
    ("--kube-api-burst=-1", "--kube-api-burst: invalid value -1"),
    ("--kube-api-qps=x", "--kube-api-qps: invalid value \"x\": must be a number"),
    ("--log-flush-frequency=0", "--log-flush-frequency: invalid value \"0s\": Must be greater than zero"),
    ("--log-json-info-buffer-size=1Ki", "Feature LoggingAlphaOptions is disabled"),
    ("--log-json-info-buffer-size=x", "--log-json-info-buffer-size: invalid value \"x\": must be a size"),
    ("--log-json-split-stream", "Feature LoggingAlphaOptions is disabled"),
    ("--log-text-info-buffer-size=1", "Feature LoggingAlphaOptions is disabled"),
    ("--log-text-split-stream", "Feature LoggingAlphaOptions is disabled"),
    ("--logging-format=foo", "--logging-format: invalid value \"foo\": Unsupported log format"),
    ("--logging-format=json --feature-gates=LoggingBetaOptions=false", "LoggingBetaOptions"),
    ("--logging-format=json --vmodule=a=1", "--vmodule: Forbidden: Only supported for text log format"),
    ("--metrics-bind-address=::1", "--metrics-bind-address: invalid value \"::1\": must be IP:port"),
    ("--metrics-port=", "--metrics-port: invalid value \"\""),
    ("--nodeport-addresses=10.0.0.0/8,primary", "can't use both 'primary' and CIDRs"),
    ("--nodeport-addresses=\"a,b\",c", "--nodeport-addresses: invalid value"),
    ("--nodeport-addresses=\"a", "--nodeport-addresses: invalid value"),
    ("--oom-score-adj=1001", "--oom-score-adj: invalid value 1001: must be within the range [-1000, 1000]"),
    ("--oom-score-adj=-1001", "--oom-score-adj: invalid value -1001"),
    ("--profiling=x", "--profiling: invalid value \"x\""),
    ("--proxy-mode=IPVS", "--proxy-mode: invalid value \"IPVS\": must be iptables, ipvs, nftables or blank"),
    ("--proxy-mode=kernelspace", "--proxy-mode: invalid value \"kernelspace\""),
    ("--show-hidden-metrics-for-version=x", "must be omitted or be a minor version of Kubernetes"),
    ("--v=-1", "--v: invalid value \"-1\": must be a number"),
    ("--v=2147483648", "--v: invalid value \"2147483648\""),
    ("--v=x", "--v: invalid value \"x\""),
    ("--version=foo", "--version: invalid value \"foo\""),
    ("--version=v1.2.3", "--version: invalid value \"v1.2.3\""),
    ("--vmodule=a", "--vmodule: invalid value \"a\": must be PATTERN=NUMBER"),
    ("--vmodule=a=x", "--vmodule: invalid value \"a=x\""),
    ("x", "invalid value 'x' for '[ARGUMENT]...': only flags are permitted"),
];

/// Flags that kube-proxy accepts and this program refuses, and its message.
#[rustfmt::skip]
const REFUSED: &[(&str, &str)] = &[
    ("--conntrack-max-per-core=0x10", "--conntrack-max-per-core: invalid value \"0x10\": must be a 32-bit integer"),
    ("--oom-score-adj=010", "--oom-score-adj: invalid value \"010\": must be a 32-bit integer"),
    ("--pod-interface-name-prefix=a --ipvs-exclude-cidrs=\"10.0.0.0/8\"", "--ipvs-exclude-cidrs: invalid value \"\\\"10.0.0.0/8\\\"\": must be a list of words without quotes"),
    ("--ipvs-exclude-cidrs=a --ipvs-exclude-cidrs=b,c", "--ipvs-exclude-cidrs: invalid value \"c\": must be a valid CIDR"),
    ("--ipvs-sync-period=0", "--ipvs-sync-period: invalid value \"0s\": must be greater than 0"),
    ("--ipvs-tcp-timeout=-1s", "--ipvs-tcp-timeout: invalid value \"-1s\": must be within the range"),
    ("--ipvs-scheduler=a_name_that_is_too_long", "--ipvs-scheduler: "),
];

fn words(flags: &str) -> Vec<&str> {
    flags.split(' ').filter(|word| !word.is_empty()).collect()
}

/// Returns the names of the flags in a row, without dashes and in kube-proxy's spelling.
fn names(flags: &str) -> impl Iterator<Item = String> {
    words(flags).into_iter().filter_map(|word| {
        let name = word.split('=').next().unwrap();
        match name.strip_prefix("--") {
            Some(name) => Some(name.replace('_', "-")),
            None => name.starts_with("-v").then(|| "v".to_owned()),
        }
    })
}

#[test]
fn every_flag_has_an_accepted_and_an_invalid_value() {
    let accepted: BTreeSet<String> = ACCEPTED
        .iter()
        .flat_map(|(flags, _)| names(flags))
        .collect();
    let rejected: BTreeSet<String> = REJECTED
        .iter()
        .flat_map(|(flags, _)| names(flags))
        .collect();
    // Every text is valid.
    let free = [
        "boot-id-file",
        "hostname-override",
        "ipvs-scheduler",
        "kube-api-content-type",
        "kubeconfig",
        "machine-id-file",
        "master",
        "pod-bridge-interface",
        "pod-interface-name-prefix",
        "write-config-to",
    ];
    for flag in &FLAGS {
        let name = flag.name.to_owned();
        assert!(
            accepted.contains(&name) || ["config", "write-config-to"].contains(&flag.name),
            "{name}"
        );
        let is_switch = flag.value.is_empty();
        assert!(
            is_switch || rejected.contains(&name) || free.contains(&flag.name),
            "{name}"
        );
    }
}

#[test]
fn accepted_flags_become_fields_of_the_written_file() {
    let (defaults, _) = ours().write_config::<&str>(&[]);
    let Outcome::Written(defaults) = defaults else {
        panic!("{defaults:?}");
    };
    for (flags, changes) in ACCEPTED {
        let mut expected = defaults.clone();
        for change in words(changes) {
            let (path, value) = change.split_once('=').unwrap();
            expected.insert(path.to_owned(), serde_json::from_str(value).unwrap());
        }
        let (outcome, _) = ours().write_config(&words(flags));
        assert_eq!(outcome, Outcome::Written(expected), "{flags}");
    }
}

#[test]
fn invalid_flags_are_rejected_by_name_value_and_rule() {
    for (flags, message) in REJECTED.iter().chain(REFUSED) {
        match ours().write_config(&words(flags)).0 {
            Outcome::Written(_) => panic!("{flags} were accepted"),
            Outcome::Rejected(log) => assert!(log.contains(message), "{flags}: {log}"),
        }
    }
}

#[test]
fn all_invalid_flags_are_named_at_once() {
    let (_, log) = ours().write_config(&["--v=x", "--oom-score-adj=y"]);
    assert!(
        log.contains("--v: ") && log.contains("--oom-score-adj: "),
        "{log}"
    );
    let (_, log) = ours().write_config(&["--oom-score-adj=5000", "--proxy-mode=x"]);
    assert!(
        log.contains("--oom-score-adj: ") && log.contains("--proxy-mode: "),
        "{log}"
    );
}

#[test]
fn kube_proxy_treats_every_flag_the_same_way() {
    let Some(kube_proxy) = kube_proxy("kube_proxy_treats_every_flag_the_same_way") else {
        return;
    };
    let mut different = Vec::new();
    for (flags, _) in ACCEPTED.iter().chain(REJECTED) {
        let (theirs, _) = kube_proxy.write_config(&words(flags));
        let (ours, _) = ours().write_config(&words(flags));
        different.extend(difference(flags, &theirs, &ours));
    }
    for (flags, _) in REFUSED {
        let (theirs, log) = kube_proxy.write_config(&words(flags));
        assert!(matches!(theirs, Outcome::Written(_)), "{flags}: {log}");
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn files_that_kube_proxy_wrote_are_read_as_kube_proxy_reads_them() {
    let Some(kube_proxy) =
        kube_proxy("files_that_kube_proxy_wrote_are_read_as_kube_proxy_reads_them")
    else {
        return;
    };
    let mut different = Vec::new();
    for (flags, _) in ACCEPTED {
        let (text, log) = kube_proxy.write(&words(flags));
        let text = text.unwrap_or_else(|| panic!("{flags}: {log}"));
        // It rejects some of its own files: flags of another mode are not checked.
        let (theirs, _) = kube_proxy.read_config(&text, &[]);
        let (ours, log) = ours().read_config(&text, &[]);
        assert!(!log.contains("unknown field"), "{flags}: {log}");
        different.extend(difference(flags, &theirs, &ours));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn kube_proxy_has_the_flags_of_the_table_with_these_defaults() {
    let Some(kube_proxy) = kube_proxy("kube_proxy_has_the_flags_of_the_table_with_these_defaults")
    else {
        return;
    };
    let help = String::from_utf8(kube_proxy.run(&["--help"]).stdout).unwrap();
    let mut names = BTreeSet::new();
    for line in help.lines() {
        let Some((_, flag)) = line
            .split_once("--")
            .filter(|(before, _)| before.len() == 6)
        else {
            continue;
        };
        let name = flag.split(' ').next().unwrap();
        names.insert(name.to_owned());
        let Some(ours) = FLAGS.iter().find(|flag| flag.name == name) else {
            assert_eq!(name, "help");
            continue;
        };
        let default = line
            .rsplit_once("(default ")
            .map(|(_, default)| default.trim_end_matches(')'));
        let is_zero = ["", "false", "0"].contains(&ours.default);
        let expected = (!is_zero).then_some(ours.default);
        // Other parentheses end some of the texts.
        let default = default
            .map(|text| text.trim_matches('"'))
            .filter(|text| !text.contains("currently"));
        if name != "feature-gates" {
            assert_eq!(default, expected, "--{name}");
        }
    }
    assert_eq!(names.len(), 57);
    let hidden = ["healthz-port", "metrics-port"];
    for flag in &FLAGS {
        assert!(
            names.contains(flag.name) || hidden.contains(&flag.name),
            "--{}",
            flag.name
        );
    }
}
