//! The values of every field of configuration files.

use std::collections::BTreeSet;

use proxier::testing::config::FIELDS;

use crate::programs::{Outcome, difference, file, kube_proxy, ours};

/// Accepted contents, without `apiVersion` and `kind`, and words of the log; none means no warning.
#[rustfmt::skip]
const ACCEPTED: &[(&str, &str)] = &[
    ("", ""),
    ("mode: ipvs", ""),
    ("mode: iptables", "config.yaml:3: mode: this program programs IPVS"),
    ("mode: ''\nnodePortAddresses: []", "config.yaml:3: mode"),
    ("Mode: ipvs", "config.yaml:3: Mode: is an unknown field; it is ignored"),
    ("foo: 1", "config.yaml:3: foo: is an unknown field; it is ignored"),
    ("ipvs:\n  foo: 1\n  strictARP: on", "config.yaml:4: ipvs.foo: is an unknown field; it is ignored"),
    ("logging: {options: {json: {x: 1}}}", "logging.options.json.x: is an unknown field"),
    ("ipvs: null\nlogging: ~\nfeatureGates: null\nnodePortAddresses: null\nbindAddress: null\nmode: null", ""),
    ("iptables: {masqueradeBit: null, localhostNodePorts: null}\noomScoreAdj: null\nconntrack: {maxPerCore: null, tcpEstablishedTimeout: null}", ""),
    ("bindAddress: '::'", ""),
    ("bindAddress: '::1'\nhealthzBindAddress: 1.2.3.4\nmetricsBindAddress: '::1'", ""),
    ("healthzBindAddress: ''\nmetricsBindAddress: ''", ""),
    ("healthzBindAddress: 1.2.3.4:65535\nmetricsBindAddress: '[::1]:1'", ""),
    ("bindAddressHardFail: yes", ""),
    ("enableProfiling: true", "config.yaml:3: enableProfiling has no effect here"),
    ("oomScoreAdj: 0", ""),
    ("oomScoreAdj: 010", ""),
    ("oomScoreAdj: -1000", ""),
    ("clientConnection:\n  acceptContentTypes: a\n  burst: 0\n  contentType: b\n  kubeconfig: /etc/k\n  qps: 5.5", "clientConnection.acceptContentTypes: \"a\" names neither JSON nor protobuf; JSON is used"),
    ("clientConnection: {burst: 7, qps: 0}", "config.yaml:3: clientConnection.burst has no effect here"),
    ("clientConnection: {contentType: a}", "config.yaml:3: clientConnection.contentType: \"a\" names neither JSON nor protobuf; JSON is used"),
    ("clientConnection: {contentType: application/json}", ""),
    ("clientConnection: {acceptContentTypes: 'application/vnd.kubernetes.protobuf,application/json', contentType: a}", ""),
    ("clientConnection: {qps: 7}", "qps has no effect"),
    ("clusterCIDR: 10.0.0.5/8,fd00::/8", ""),
    ("clusterCIDR: x\ndetectLocalMode: NodeCIDR", ""),
    ("configSyncPeriod: 1ns", "configSyncPeriod has no effect"),
    ("configSyncPeriod: 0s\nipvs: {syncPeriod: 0s}\nmode: ipvs", ""),
    ("conntrack:\n  maxPerCore: 0\n  min: 0\n  tcpBeLiberal: true\n  tcpCloseWaitTimeout: 0s\n  tcpEstablishedTimeout: 0s\n  udpStreamTimeout: 1s\n  udpTimeout: 1.5s", ""),
    ("detectLocal: {bridgeInterface: cni0}\ndetectLocalMode: BridgeInterface", ""),
    ("detectLocal: {interfaceNamePrefix: veth}\ndetectLocalMode: InterfaceNamePrefix", ""),
    ("detectLocalMode: ''", ""),
    ("featureGates: {Foo: true, Bar: null}", "featureGates: these feature gates have no effect here: Bar, Foo"),
    ("featureGates: {PreferSameTrafficDistribution: true}", ""),
    ("hostnameOverride: aBc", ""),
    ("hostnameOverride: 'yes'", ""),
    ("iptables:\n  localhostNodePorts: false\n  masqueradeAll: true\n  masqueradeBit: 31\n  minSyncPeriod: 2s\n  syncPeriod: 9s", "config.yaml:4: iptables.localhostNodePorts has no effect here"),
    ("mode: ipvs\niptables: {masqueradeAll: true, masqueradeBit: 0, syncPeriod: 9s}", "iptables.syncPeriod has no effect here: the mode makes ipvs the section"),
    ("mode: ipvs\nipvs:\n  excludeCIDRs: [10.0.0.0/8]\n  minSyncPeriod: 30s\n  scheduler: wrr\n  strictARP: true\n  syncPeriod: 30s\n  tcpFinTimeout: 1s\n  tcpTimeout: 2s\n  udpTimeout: 3s", ""),
    ("ipvs: {syncPeriod: 7s}", "config.yaml:3: ipvs.syncPeriod has no effect here: the mode makes iptables the section"),
    ("logging: {flushFrequency: 5}", "logging.flushFrequency has no effect"),
    ("logging: {flushFrequency: 0, format: '', verbosity: 0}", ""),
    ("logging: {flushFrequency: 5000000000, verbosity: 3, format: json}", "logging.flushFrequency has no effect"),
    ("logging: {vmodule: [{filePattern: a, verbosity: 2}]}", "logging.vmodule has no effect"),
    ("logging: {verbosity: 2147483647}", ""),
    ("logging: {options: {text: {splitStream: true, infoBufferSize: 1Ki}, json: {splitStream: true, infoBufferSize: 512}}}\nfeatureGates: {LoggingAlphaOptions: true}", "logging.options.json.infoBufferSize has no effect"),
    ("nftables:\n  masqueradeAll: true\n  masqueradeBit: 3\n  minSyncPeriod: 2s\n  syncPeriod: 3s", "nftables.minSyncPeriod has no effect here"),
    ("mode: nftables\nnftables:\n  masqueradeAll: true\n  masqueradeBit: 3\n  minSyncPeriod: 2s\n  syncPeriod: 3s", ""),
    ("mode: nftables\nnodePortAddresses: [10.0.0.0/8]", ""),
    ("nodePortAddresses: [10.0.0.0/8, 'fd00::/8']", ""),
    ("nodePortAddresses:\n- primary", ""),
    ("portRange: foo", "portRange has no effect"),
    ("showHiddenMetricsForVersion: '1.35'", "showHiddenMetricsForVersion has no effect"),
    ("windowsRunAsService: true\nwinkernel: {enableDSR: true, forwardHealthCheckVip: true, networkName: a, rootHnsEndpointName: b, sourceVip: c}", "winkernel.sourceVip has no effect"),
    ("# A comment\n\"mode\" : \"ipvs\"\n...\n", ""),
    ("x: &a {strictARP: true}\nmode: ipvs\nipvs:\n  <<: *a", "config.yaml:3: x: is an unknown field"),
    ("x: &a {strictARP: true, scheduler: rr}\nipvs:\n  <<: *a\n  strictARP: false", "config.yaml:3: x: is an unknown field"),
];

/// Rejected contents, and the message about them.
#[rustfmt::skip]
const REJECTED: &[(&str, &str)] = &[
    ("bindAddress: ::", "config.yaml:3: cannot be read"),
    ("bindAddress: '[::]'", "config.yaml:3: bindAddress: invalid value \"[::]\": must be a valid IP address"),
    ("bindAddress: 5", "config.yaml:3: bindAddress: must be a string (quote it), not a number"),
    ("bindAddressHardFail: 'true'", "config.yaml:3: bindAddressHardFail: must be true or false, not a string"),
    ("bindAddressHardFail: 1", "bindAddressHardFail: must be true or false, not a number"),
    ("clientConnection:\n  burst: -1", "config.yaml:4: clientConnection.burst: invalid value -1: must be greater than or equal to 0"),
    ("clientConnection: {burst: x}", "clientConnection.burst: must be a 32-bit integer, not a string"),
    ("clientConnection: {qps: x}", "clientConnection.qps: must be a number, not a string"),
    ("clientConnection: {acceptContentTypes: 1}", "acceptContentTypes: must be a string"),
    ("clientConnection: {contentType: 1}", "contentType: must be a string"),
    ("clientConnection: {kubeconfig: 1}", "kubeconfig: must be a string"),
    ("clusterCIDR: 10.0.0.0/8, fd00::/8", "config.yaml:3: clusterCIDR[1]: invalid value \" fd00::/8\": must be a valid CIDR block"),
    ("clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "must be a single CIDR or a dual-stack pair"),
    ("clusterCIDR: [10.0.0.0/8]", "clusterCIDR: must be a string with networks"),
    ("configSyncPeriod: -1s", "config.yaml:3: configSyncPeriod: invalid value \"-1s\": must be greater than 0"),
    ("configSyncPeriod: 5", "configSyncPeriod: must be a duration, such as 30s or 1h15m, not a number"),
    ("conntrack:\n  maxPerCore: -1\n  min: -1\n  tcpCloseWaitTimeout: -1s\n  tcpEstablishedTimeout: -1s\n  udpStreamTimeout: -1s\n  udpTimeout: -1s", "config.yaml:9: conntrack.udpTimeout: invalid value \"-1s\""),
    ("conntrack: {maxPerCore: 1.5}", "conntrack.maxPerCore: must be a 32-bit integer"),
    ("conntrack: {min: 99999999999}", "conntrack.min: must be a 32-bit integer"),
    ("conntrack: {tcpBeLiberal: 1}", "conntrack.tcpBeLiberal: must be true or false"),
    ("conntrack: {tcpCloseWaitTimeout: 1}", "tcpCloseWaitTimeout: must be a duration"),
    ("conntrack: {tcpEstablishedTimeout: 1d}", "tcpEstablishedTimeout: invalid value \"1d\": must be a duration"),
    ("conntrack: {udpStreamTimeout: ''}", "udpStreamTimeout: invalid value \"\""),
    ("conntrack: {udpTimeout: null}", "udpTimeout: invalid value null"),
    ("detectLocalMode: clustercidr", "config.yaml:3: detectLocalMode: invalid value \"clustercidr\": supported values: \"ClusterCIDR\""),
    ("detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface: invalid value \"\": must not be empty"),
    ("detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix: invalid value \"\": must not be empty"),
    ("detectLocal: {bridgeInterface: 1, interfaceNamePrefix: 2}", "detectLocal.bridgeInterface: must be a string"),
    ("detectLocal: {interfaceNamePrefix: []}", "interfaceNamePrefix: must be a string (quote it), not a list"),
    ("enableProfiling: x", "enableProfiling: must be true or false, not a string"),
    ("featureGates: {Foo: 'true'}", "featureGates.Foo: must be true or false, not a string"),
    ("featureGates: [Foo]", "featureGates: must be a mapping"),
    ("featureGates:\n  PreferSameTrafficDistribution: false", "feature is locked to true"),
    ("healthzBindAddress: foo", "healthzBindAddress: invalid value \"foo\": must be IP:port"),
    ("healthzBindAddress: 1.2.3.4:0", "healthzBindAddress: invalid value \"0\": must be a valid port"),
    ("healthzBindAddress: 1.2.3.4:65536", "must be a valid port"),
    ("healthzBindAddress: ':80'", "healthzBindAddress: invalid value \"\": must be a valid IP"),
    ("metricsBindAddress: '[::1]'", "metricsBindAddress: invalid value \"[::1]\": must be IP:port"),
    ("metricsBindAddress: '::1:80'\nbindAddress: x", "bindAddress: invalid value \"x\""),
    ("hostnameOverride: 123", "hostnameOverride: must be a string (quote it), not a number"),
    ("iptables: {localhostNodePorts: 1}", "iptables.localhostNodePorts: must be true or false"),
    ("iptables: {masqueradeAll: x}", "iptables.masqueradeAll: must be true or false"),
    ("iptables:\n  masqueradeBit: -1", "config.yaml:4: iptables.masqueradeBit: invalid value -1: must be within the range [0, 31]"),
    ("iptables: {masqueradeBit: 32}", "must be within the range [0, 31]"),
    ("iptables: {minSyncPeriod: -1s}", "iptables.minSyncPeriod: invalid value \"-1s\": must be greater than or equal to 0"),
    ("iptables: {minSyncPeriod: 31s}", "iptables.syncPeriod: invalid value \"30s\": must be greater than or equal to iptables.minSyncPeriod (31s)"),
    ("iptables: {syncPeriod: -5s}", "iptables.syncPeriod: invalid value \"-5s\": must be greater than 0"),
    ("ipvs: 3", "config.yaml:3: cannot be read: invalid type"),
    ("mode: ipvs\nipvs:\n  excludeCIDRs:\n  - 10.0.0.0/8\n  - foo", "config.yaml:5: ipvs.excludeCIDRs[1]: invalid value \"foo\": must be a valid CIDR"),
    ("ipvs: {excludeCIDRs: foo}", "ipvs.excludeCIDRs: must be a list of strings, not a string"),
    ("ipvs: {excludeCIDRs: [1]}", "ipvs.excludeCIDRs[0]: must be a string, not a number"),
    ("mode: ipvs\nipvs: {minSyncPeriod: -1s}", "ipvs.minSyncPeriod: invalid value \"-1s\""),
    ("mode: ipvs\nipvs: {minSyncPeriod: 31s}", "must be greater than or equal to ipvs.minSyncPeriod (31s)"),
    ("ipvs: {scheduler: 1}", "ipvs.scheduler: must be a string"),
    ("ipvs: {strictARP: 'yes'}", "ipvs.strictARP: must be true or false, not a string"),
    ("ipvs:\n  syncPeriod: 30", "config.yaml:4: ipvs.syncPeriod: must be a duration"),
    ("ipvs:\n  syncPeriod: 0", "ipvs.syncPeriod: must be a duration"),
    ("ipvs:\n  syncPeriod: null", "ipvs.syncPeriod: invalid value null"),
    ("mode: ipvs\nipvs:\n  tcpFinTimeout: -1s\n  tcpTimeout: -1s\n  udpTimeout: -1s", "config.yaml:7: ipvs.udpTimeout: invalid value \"-1s\""),
    ("logging: {flushFrequency: -1}", "logging.flushFrequency: invalid value -1: Must be greater than zero"),
    ("logging: {flushFrequency: true}", "logging.flushFrequency: must be a duration"),
    ("logging: {format: foo}", "logging.format: invalid value \"foo\": Unsupported log format"),
    ("logging: {verbosity: -1}", "logging.verbosity: must be a number from 0"),
    ("logging: {verbosity: 2147483648}", "logging.verbosity"),
    ("logging: {format: json, vmodule: [{filePattern: a, verbosity: 2}]}", "logging.vmodule: Forbidden: Only supported for text log format"),
    ("logging: {vmodule: [{filePattern: '', verbosity: 2}]}", "logging.vmodule[0]: filePattern: Required value"),
    ("logging: {vmodule: [{filePattern: 'a=b', verbosity: 2}]}", "File pattern must not contain equal sign or comma"),
    ("logging: {vmodule: [{filePattern: 1}]}", "logging.vmodule[0]: must have a filePattern, which is a string"),
    ("logging: {vmodule: x}", "logging.vmodule: must be a list"),
    ("logging: {options: {json: {infoBufferSize: 1Ki}}}", "infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"),
    ("logging: {options: {json: {splitStream: x}}}", "splitStream: must be true or false"),
    ("logging: {options: {text: {infoBufferSize: x}}}", "infoBufferSize: must be a size"),
    ("logging: {options: {text: {splitStream: 1}}}", "splitStream: must be true or false"),
    ("mode: yes", "config.yaml:3: mode: must be a string (quote it), not a boolean"),
    ("mode: IPVS", "mode: invalid value \"IPVS\": must be iptables, ipvs, nftables or blank"),
    ("nftables: {masqueradeAll: x}", "nftables.masqueradeAll: must be true or false"),
    ("nftables: {masqueradeBit: x}", "nftables.masqueradeBit: must be a 32-bit integer"),
    ("mode: nftables\nnftables: {masqueradeBit: 32}", "nftables.masqueradeBit: invalid value 32"),
    ("mode: nftables\nnftables: {minSyncPeriod: 31s}", "must be greater than or equal to nftables.minSyncPeriod"),
    ("nftables: {syncPeriod: 1}", "nftables.syncPeriod: must be a duration"),
    ("nodePortAddresses: [10.0.0.0/8, primary]", "nodePortAddresses[1]: invalid value \"primary\": can't use both 'primary' and CIDRs"),
    ("nodePortAddresses: [all, 10.0.0.0/8]", "nodePortAddresses[0]: invalid value \"all\": can't use both 'all' and CIDRs"),
    ("nodePortAddresses:\n- 10.0.0.0", "config.yaml:3: nodePortAddresses[0]: invalid value \"10.0.0.0\": must be a valid CIDR"),
    ("nodePortAddresses: 10.0.0.0/8", "nodePortAddresses: must be a list of strings, not a string"),
    ("oomScoreAdj: 1001", "oomScoreAdj: invalid value 1001: must be within the range [-1000, 1000]"),
    ("oomScoreAdj: '5'", "oomScoreAdj: must be a 32-bit integer, not a string"),
    ("oomScoreAdj: 1.5", "oomScoreAdj: must be a 32-bit integer"),
    ("portRange: 1", "portRange: must be a string"),
    ("showHiddenMetricsForVersion: 1.35", "showHiddenMetricsForVersion: must be a string (quote it), not a number"),
    ("showHiddenMetricsForVersion: 'x'", "must be omitted or be a minor version of Kubernetes"),
    ("windowsRunAsService: x", "windowsRunAsService: must be true or false"),
    ("winkernel: {enableDSR: x}", "winkernel.enableDSR: must be true or false"),
    ("winkernel: {forwardHealthCheckVip: x}", "winkernel.forwardHealthCheckVip: must be true or false"),
    ("winkernel: {networkName: 1}", "winkernel.networkName: must be a string"),
    ("winkernel: {rootHnsEndpointName: 1}", "winkernel.rootHnsEndpointName: must be a string"),
    ("winkernel: {sourceVip: 1}", "winkernel.sourceVip: must be a string"),
    ("iptables:\n\tfoo: 1", "config.yaml:4: cannot be read"),
    ("a: [", "cannot be read"),
];

/// Whole texts that are rejected.
#[rustfmt::skip]
const REJECTED_TEXTS: &[(&str, &str)] = &[
    ("", "config.yaml: apiVersion is missing"),
    ("[]", "cannot be read"),
    ("x", "cannot be read"),
    ("kind: KubeProxyConfiguration\nmode: ipvs\n", "config.yaml: apiVersion is missing"),
    ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", "config.yaml: kind is missing"),
    ("apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n", "config.yaml:1: apiVersion: \"kubeproxy.config.k8s.io/v1beta1\" is not supported"),
    ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Foo\n", "config.yaml:2: kind: \"Foo\" is not supported; it must be KubeProxyConfiguration"),
    ("apiVersion: 1\nkind: KubeProxyConfiguration\n", "config.yaml:1: apiVersion: 1 is not supported; it must be"),
];

/// Contents that kube-proxy accepts and this program refuses, and its message.
#[rustfmt::skip]
const REFUSED: &[(&str, &str)] = &[
    ("mode: ipvs\nmode: iptables", "config.yaml:4: cannot be read: duplicate mapping key: mode"),
    ("ipvs: {scheduler: rr}\nipvs: {strictARP: true}", "config.yaml:4: cannot be read: duplicate mapping key: ipvs"),
    ("featureGates: {Bar: true, Bar: false}", "config.yaml:3: cannot be read: duplicate mapping key: Bar"),
    ("logging: {vmodule: [{filePattern: 1, filePattern: a, verbosity: 2}]}", "cannot be read: duplicate mapping key: filePattern"),
    ("x: 1\nx: 2", "config.yaml:4: cannot be read: duplicate mapping key: x"),
    ("oomScoreAdj: 1e2", "config.yaml:3: oomScoreAdj: must be a 32-bit integer"),
    ("mode: ipvs\n---\nmode: ipvs", "config.yaml:"),
    ("ipvs: {scheduler: a_name_that_is_too_long}", "config.yaml:3: ipvs.scheduler: "),
    ("ipvs: {tcpTimeout: -1s}", "config.yaml:3: ipvs.tcpTimeout: invalid value \"-1s\": must be within the range"),
    ("ipvs: {excludeCIDRs: [foo]}", "config.yaml:3: ipvs.excludeCIDRs[0]: invalid value \"foo\": must be a valid CIDR"),
    ("nftables: {masqueradeBit: 32}", "config.yaml:3: nftables.masqueradeBit: invalid value 32: must be within the range [0, 31]"),
];

/// Contents for other versions of kube-proxy, which 1.36 refuses, and a word of the log; none means no warning.
#[rustfmt::skip]
const OF_OTHER_VERSIONS: &[(&str, &str)] = &[
    ("nodePortAddresses: [primary, localhost]", ""),
    ("nodePortAddresses: [localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}", ""),
    ("mode: nftables\nnodePortAddresses: [all]", ""),
    ("featureGates: {KubeProxyIPVS: true, NFTablesNetlink: false}", "these feature gates have no effect here: KubeProxyIPVS, NFTablesNetlink"),
    ("showHiddenMetricsForVersion: '1.36'", "showHiddenMetricsForVersion has no effect"),
    ("showHiddenMetricsForVersion: '1.23'", "showHiddenMetricsForVersion has no effect"),
    ("udpIdleTimeout: 250ms", "udpIdleTimeout: is an unknown field; it is ignored"),
];

/// What kubeadm writes: 1.24 with its defaults, and 1.37.
const OF_KUBEADM: &[&str] = &[
    "bindAddress: 0.0.0.0\nbindAddressHardFail: false\nclientConnection:\n  acceptContentTypes: ''\n  burst: 0\n  \
     contentType: ''\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n  qps: 0\nclusterCIDR: 10.244.0.0/16\n\
     configSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n  tcpCloseWaitTimeout: null\n  \
     tcpEstablishedTimeout: null\ndetectLocal:\n  bridgeInterface: ''\n  interfaceNamePrefix: ''\ndetectLocalMode: ''\n\
     enableProfiling: false\nhealthzBindAddress: ''\nhostnameOverride: ''\niptables:\n  masqueradeAll: false\n  \
     masqueradeBit: null\n  minSyncPeriod: 0s\n  syncPeriod: 0s\nipvs:\n  excludeCIDRs: null\n  minSyncPeriod: 0s\n  \
     scheduler: ''\n  strictARP: false\n  syncPeriod: 0s\n  tcpFinTimeout: 0s\n  tcpTimeout: 0s\n  udpTimeout: 0s\n\
     metricsBindAddress: ''\nmode: ipvs\nnodePortAddresses: null\noomScoreAdj: null\nportRange: ''\n\
     showHiddenMetricsForVersion: ''\nudpIdleTimeout: 0s\nwinkernel:\n  enableDSR: false\n  networkName: ''\n  sourceVip: ''",
    "bindAddress: 0.0.0.0\nclusterCIDR: 10.244.0.0/16,fd00::/56\nconntrack:\n  tcpBeLiberal: false\n  udpStreamTimeout: \
     0s\n  udpTimeout: 0s\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\nlogging:\n  flushFrequency: 0\n  \
     options:\n    json:\n      infoBufferSize: '0'\n    text:\n      infoBufferSize: '0'\n  verbosity: 0\nmode: \
     nftables\nnftables:\n  masqueradeAll: false\n  masqueradeBit: null\n  minSyncPeriod: 0s\n  syncPeriod: 0s\n\
     nodePortAddresses: [primary, localhost]\nwindowsRunAsService: false\nwinkernel: {forwardHealthCheckVip: false}",
];

#[test]
fn files_of_other_versions_start_this_program() {
    for (content, message) in OF_OTHER_VERSIONS {
        let (outcome, log) = ours().read_config(&file(content), &[]);
        assert!(matches!(outcome, Outcome::Written(_)), "{content}: {log}");
        assert_eq!(
            log.contains("WARN"),
            !message.is_empty(),
            "{content}: {log}"
        );
        assert!(log.contains(message), "{content}: {log}");
    }
    for content in OF_KUBEADM {
        let (outcome, log) = ours().read_config(&file(content), &[]);
        assert!(matches!(outcome, Outcome::Written(_)), "{content}: {log}");
        let foreign = log
            .lines()
            .filter(|line| line.contains("WARN") && !line.contains("udpIdleTimeout"));
        assert_eq!(foreign.count(), 0, "{log}");
    }
}

/// Files in JSON: the fields beside `apiVersion` and `kind`.
const JSON: &[&str] = &[
    r#""mode": "ipvs", "ipvs": {"minSyncPeriod": "2s"}"#,
    r#""mode": "ipvs", "ipvs": {"excludeCIDRs": ["10.0.0.0/8", "10.0.0.0/9"]}, "logging": null"#,
];

fn json(fields: &str) -> String {
    let version = r#""apiVersion": "kubeproxy.config.k8s.io/v1alpha1""#;
    format!("{{\n\t{version},\n\t\"kind\": \"KubeProxyConfiguration\",\n\t{fields}\n}}\n")
}

/// Flags beside a file.
#[rustfmt::skip]
const FLAGS: &[(&str, &[&str])] = &[
    ("hostnameOverride: a", &["--hostname-override=Node"]),
    ("hostnameOverride: a", &["--hostname-override="]),
    ("hostnameOverride: a", &["--hostname-override= "]),
    ("logging: {verbosity: 3, vmodule: [{filePattern: a, verbosity: 2}]}", &["-v=1", "--vmodule=b=4", "--log-flush-frequency=7s"]),
    ("logging: {verbosity: 3}", &["--logging-format=json"]),
    ("mode: ipvs", &[ "--ipvs-sync-period=5s", "--feature-gates=WatchList=false", "--kubeconfig=/x", "--healthz-port=0", "--cluster-cidr=x", "--oom-score-adj=5000", ]),
    ("mode: ipvs", &["--ipvs-sync-period=x"]),
];

#[test]
fn every_field_has_an_accepted_and_an_invalid_value() {
    for (table, rows) in [("accepted", ACCEPTED), ("rejected", REJECTED)] {
        let mut found = BTreeSet::new();
        for (content, _) in rows {
            for word in content.split(|letter: char| !letter.is_ascii_alphanumeric()) {
                found.insert(word);
            }
        }
        for field in &FIELDS {
            let name = field.path.rsplit('.').next().unwrap();
            assert!(found.contains(name), "{}: {table}", field.path);
        }
    }
}

#[test]
fn accepted_files_get_only_the_warnings_that_they_deserve() {
    for (content, message) in ACCEPTED {
        let (outcome, log) = ours().read_config(&file(content), &[]);
        assert!(matches!(outcome, Outcome::Written(_)), "{content}: {log}");
        // In the text and the JSON format.
        let warns = ["WARN", r#""level":"warn""#]
            .iter()
            .any(|it| log.contains(it));
        assert_eq!(warns, !message.is_empty(), "{content}: {log}");
        assert!(log.contains(message), "{content}: {log}");
    }
}

#[test]
fn invalid_files_are_rejected_with_file_line_field_and_rule() {
    let contents = REJECTED
        .iter()
        .map(|(content, message)| (file(content), message));
    let refused = REFUSED
        .iter()
        .map(|(content, message)| (file(content), message));
    let repeated = (
        json(r#""ipvs": {"scheduler": "rr"}, "ipvs": {}"#),
        &"config.yaml:4: cannot be read: duplicate mapping key: ipvs",
    );
    let texts = REJECTED_TEXTS
        .iter()
        .map(|(text, message)| ((*text).to_owned(), message));
    let rows = contents.chain(texts).chain(refused).chain([repeated]);
    for (text, message) in rows {
        let (outcome, log) = ours().read_config(&text, &[]);
        assert!(
            matches!(outcome, Outcome::Rejected(_)),
            "{text} was accepted"
        );
        assert!(log.contains(message), "{text}: {log}");
    }
}

#[test]
fn all_invalid_fields_are_named_at_once() {
    let (_, log) = ours().read_config(&file("mode: 1\noomScoreAdj: x"), &[]);
    assert!(
        log.contains(":3: mode: ") && log.contains(":4: oomScoreAdj: "),
        "{log}"
    );
    let (_, log) = ours().read_config(&file("mode: x\noomScoreAdj: 5000"), &[]);
    assert!(
        log.contains(":3: mode: ") && log.contains(":4: oomScoreAdj: "),
        "{log}"
    );
}

#[test]
fn flags_beside_a_file_are_named_once_if_the_file_replaces_them() {
    let flags = [
        "--ipvs-sync-period=5s",
        "--ipvs-sync-period=6s",
        "--masquerade-all",
        "-v=2",
    ];
    let (outcome, log) = ours().read_config(&file("mode: ipvs"), &flags);
    let Outcome::Written(fields) = outcome else {
        panic!("{log}");
    };
    assert_eq!(fields["ipvs.syncPeriod"], "30s");
    assert_eq!(fields["logging.verbosity"], 2);
    let warning = "config.yaml replaces all flags that have a field in it, so these flags are ignored: \
                   --ipvs-sync-period, --masquerade-all\n";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn kube_proxy_treats_every_file_the_same_way() {
    let Some(kube_proxy) = kube_proxy("kube_proxy_treats_every_file_the_same_way") else {
        return;
    };
    let rows = ACCEPTED.iter().chain(REJECTED);
    let contents = rows.map(|(content, _)| (file(content), &[][..]));
    let texts = REJECTED_TEXTS
        .iter()
        .map(|(text, _)| ((*text).to_owned(), &[][..]));
    let json = JSON.iter().map(|fields| (json(fields), &[][..]));
    let flags = FLAGS.iter().map(|(content, flags)| (file(content), *flags));
    let mut different = Vec::new();
    for (text, flags) in contents.chain(texts).chain(json).chain(flags) {
        let (theirs, _) = kube_proxy.read_config(&text, flags);
        let (ours, _) = ours().read_config(&text, flags);
        different.extend(difference(&format!("{text}{flags:?}"), &theirs, &ours));
    }
    for (content, _) in REFUSED {
        let (theirs, log) = kube_proxy.read_config(&file(content), &[]);
        assert!(matches!(theirs, Outcome::Written(_)), "{content}: {log}");
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn each_program_reads_what_the_other_wrote() {
    let Some(kube_proxy) = kube_proxy("each_program_reads_what_the_other_wrote") else {
        return;
    };
    let flags = [
        "--proxy-mode=ipvs",
        "--ipvs-scheduler=wrr",
        "--cluster-cidr=10.0.0.0/8,fd00::/8",
        "--nodeport-addresses=fd00::/8",
        "--feature-gates=Foo=true",
        "--vmodule=a=1",
        "--hostname-override=yes",
        "--pod-bridge-interface=0x1",
        "--kubeconfig=a: b",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
    ];
    let folder = tempfile::tempdir().unwrap();
    let mut texts = Vec::new();
    for (program, name) in [(&kube_proxy, "theirs"), (&ours(), "ours")] {
        let path = folder.path().join(name);
        let arguments: Vec<String> = flags
            .iter()
            .map(|flag| (*flag).to_owned())
            .chain([format!("--write-config-to={}", path.display())])
            .collect();
        assert!(program.run(&arguments).status.success());
        texts.push(std::fs::read_to_string(path).unwrap());
    }
    let (first, log) = ours().read_config(&texts[0], &[]);
    assert!(
        !log.contains("unknown") && matches!(first, Outcome::Written(_)),
        "{log}"
    );
    let (second, log) = kube_proxy.read_config(&texts[1], &[]);
    assert!(!log.contains("lenient"), "{log}");
    assert_eq!(first, second);
}
