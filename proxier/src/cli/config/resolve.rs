//! Flags and file become one configuration.

use std::path::{Path, PathBuf};

use super::fields::{FIELDS, Field};
use super::file::{self, ReadFile};
use super::flags::{CommandFlags, Flag, FlagValues, Target};
use super::origin::{InvalidSetting, Origin, Origins, SettingErrors};
use super::validate::split_host_port;
use super::{Configuration, Effect, GoDuration, HEALTHZ_PORT, METRICS_PORT, append_port, gates};

/// A valid configuration, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The configuration as kube-proxy has it.
    pub(crate) configuration: Configuration,
    /// The settings that only flags have.
    pub(crate) command: CommandFlags,
    /// The place that sets each setting.
    pub(crate) origins: Origins,
    /// Lines for the operator: settings without an effect, and why.
    pub notices: Vec<String>,
    /// The time between resyncs, and the shortest time between rounds.
    ///
    /// Those of the configuration, except that `--ipvs-sync-period` and `--ipvs-min-sync-period` count
    /// in every mode: this program always programs IPVS.
    pub(super) periods: [(&'static str, GoDuration); 2],
}

/// Combines flags with the configuration file that `--config` names, and validates the result.
///
/// # Errors
/// If the file is unreadable or a setting is invalid. The error names every invalid setting, with
/// the flag, or the file and its line.
pub(crate) fn resolve(
    flags: &FlagValues,
    file: Option<(&Path, &str)>,
) -> Result<Resolved, SettingErrors> {
    let mut resolved = match file {
        Some((path, text)) => from_file(flags, path, text)?,
        None => from_flags(flags),
    };
    resolved.override_hostname(flags)?;
    resolved.configuration.normalize();
    let invalid = resolved.configuration.validate();
    SettingErrors::check(&invalid, &resolved.origins)?;
    Ok(resolved)
}

/// The field that an empty flag does not replace.
const HOSTNAME: &str = "hostnameOverride";

/// Returns the defaults of the flags.
pub(super) fn flag_defaults() -> Configuration {
    let mut configuration = Configuration::default();
    configuration.set_defaults();
    // A file without `ipvs.minSyncPeriod` means 0; the flag's default is 1 s.
    configuration.ipvs.min_sync_period = GoDuration::from_secs(1);
    configuration
}

/// Sets the fields whose flags `selects` accepts. [`FlagValues::parse`] has checked the values.
fn apply(
    flags: &FlagValues,
    configuration: &mut Configuration,
    origins: &mut Origins,
    selects: impl Fn(&Flag) -> bool,
) {
    for (flag, text) in flags.given.iter().filter(|(flag, _)| selects(flag)) {
        if let Target::Field(path) = flag.target
            && let Some(field) = Field::find(path)
            && (field.slot)(configuration).parse(text).is_ok()
        {
            origins.insert(path, Origin::Flag(flag.name));
        }
    }
}

fn from_flags(flags: &FlagValues) -> Resolved {
    let mut configuration = flag_defaults();
    let mut origins = Origins::default();
    apply(flags, &mut configuration, &mut origins, |_| true);
    // The nftables mode has no flags of its own.
    configuration.nftables.sync_period = configuration.iptables.sync_period;
    configuration.nftables.min_sync_period = configuration.iptables.min_sync_period;
    configuration.nftables.masquerade_all = configuration.iptables.masquerade_all;
    // As kube-proxy's `Complete`: a file that it writes has the addresses as they were given.
    if flags.command.write_config_to.is_empty() {
        let command = &flags.command;
        let healthz = &mut configuration.healthz_bind_address;
        complete_address(healthz, command.healthz_port, HEALTHZ_PORT);
        let metrics = &mut configuration.metrics_bind_address;
        complete_address(metrics, command.metrics_port, METRICS_PORT);
    }
    let mut notices = Vec::new();
    for (index, (flag, _)) in flags.given.iter().enumerate() {
        let is_repeated = flags.given[..index]
            .iter()
            .any(|(other, _)| other.name == flag.name);
        if let (Effect::Nothing(why), false) = (flag.effect(), is_repeated) {
            notices.push(format!("--{} has no effect here: {why}", flag.name));
        }
    }
    let periods = ["syncPeriod", "minSyncPeriod"].map(|name| {
        let (section, sync, min_sync) = configuration.periods();
        let (ipvs, fields) = match name {
            "syncPeriod" => (configuration.ipvs.sync_period, ("ipvs.syncPeriod", sync)),
            _ => (
                configuration.ipvs.min_sync_period,
                ("ipvs.minSyncPeriod", min_sync),
            ),
        };
        let (path, of_mode) = fields;
        match section == "ipvs" || origins.is_set(path) {
            true => (path, ipvs),
            false => (path, of_mode),
        }
    });
    Resolved {
        notices: [notices, mode_notices(&configuration, &origins)].concat(),
        configuration,
        command: flags.command.clone(),
        origins,
        periods,
    }
}

/// Applies the deprecated port of a server: 0 switches it off, another completes a bare IP address.
fn complete_address(address: &mut String, port: Option<i32>, default: u16) {
    match port {
        Some(0) => address.clear(),
        Some(port) => append_port(address, u16::try_from(port).unwrap_or(default)),
        None => append_port(address, default),
    }
}

fn from_file(flags: &FlagValues, path: &Path, text: &str) -> Result<Resolved, SettingErrors> {
    let ReadFile {
        mut configuration,
        mut origins,
        mut notices,
        ..
    } = file::read(path, text)?;
    configuration.set_defaults();
    notices.extend(without_effect(&configuration, &origins));
    // kube-proxy 1.36.2 overwrites these two with their flags, even if those are not given.
    configuration.logging.text_split_stream = false;
    configuration.logging.json_split_stream = false;
    let vmodule = std::mem::take(&mut configuration.logging.vmodule);
    apply(flags, &mut configuration, &mut origins, |flag| {
        flag.counts_with_file() && flag.path() != Some(HOSTNAME)
    });
    // The first matching pattern wins, and flags win over the file.
    configuration.logging.vmodule.extend(vmodule);
    let mut replaced: Vec<String> = Vec::new();
    for (flag, _) in flags
        .given
        .iter()
        .filter(|(flag, _)| !flag.counts_with_file())
    {
        let name = format!("--{}", flag.name);
        if !replaced.contains(&name) {
            replaced.push(name);
        }
    }
    if !replaced.is_empty() {
        notices.push(format!(
            "{} replaces all flags that have a field in it, so these flags are ignored: {}",
            path.display(),
            replaced.join(", ")
        ));
    }
    for (flag, _) in flags
        .given
        .iter()
        .filter(|(flag, _)| flag.counts_with_file())
    {
        if let Effect::Nothing(why) = flag.effect() {
            notices.push(format!("--{} has no effect here: {why}", flag.name));
        }
    }
    let (section, sync, min_sync) = configuration.periods();
    let paths = match section {
        "ipvs" => ["ipvs.syncPeriod", "ipvs.minSyncPeriod"],
        "nftables" => ["nftables.syncPeriod", "nftables.minSyncPeriod"],
        _ => ["iptables.syncPeriod", "iptables.minSyncPeriod"],
    };
    notices.extend(mode_notices(&configuration, &origins));
    Ok(Resolved {
        configuration,
        command: flags.command.clone(),
        origins,
        notices,
        periods: [(paths[0], sync), (paths[1], min_sync)],
    })
}

/// Returns a line for each field of the file that has no effect and no default value.
///
/// Files that kube-proxy or kubeadm wrote have every field, most of them with its default.
fn without_effect(configuration: &Configuration, origins: &Origins) -> Vec<String> {
    let mut defaults = Configuration::default();
    defaults.set_defaults();
    let mut configuration = configuration.clone();
    let mut notices = Vec::new();
    for field in &FIELDS {
        let is_default =
            (field.slot)(&mut configuration).written() == (field.slot)(&mut defaults).written();
        if let (Effect::Nothing(why), false) = (field.effect, is_default) {
            let name = origins.name(field.path);
            notices.push(format!("{name} has no effect here: {why}"));
        }
    }
    notices
}

/// Returns lines about settings that another mode of kube-proxy would use, about feature gates, and
/// about unknown content types.
fn mode_notices(configuration: &Configuration, origins: &Origins) -> Vec<String> {
    let mut notices = Vec::new();
    let (section, ..) = configuration.periods();
    if origins.is_set("mode") && section != "ipvs" {
        let name = origins.name("mode");
        let mode = &configuration.mode;
        notices.push(format!(
            "{name}: this program always programs IPVS; mode {mode:?} only decides that {section} has \
             the sync periods"
        ));
    }
    for other in ["iptables", "ipvs", "nftables"] {
        for name in ["syncPeriod", "minSyncPeriod"] {
            let path = format!("{other}.{name}");
            // The IPVS flags count in every mode.
            let counts = other == section || (other == "ipvs" && origins.file.is_none());
            let is_zero = Field::find(&path).is_none_or(|field| {
                let mut copy = configuration.clone();
                let mut defaults = Configuration::default();
                defaults.set_defaults();
                (field.slot)(&mut copy).written() == (field.slot)(&mut defaults).written()
            });
            if origins.is_set(&path) && !counts && !is_zero {
                notices.push(format!(
                    "{} has no effect here: the mode makes {section} the section with the sync periods",
                    origins.name(&path)
                ));
            }
        }
    }
    let gates = gates::without_effect(&configuration.feature_gates);
    if !gates.is_empty() {
        notices.push(format!(
            "{}: these feature gates have no effect here: {}",
            origins.name("featureGates"),
            gates.join(", ")
        ));
    }
    notices.extend(configuration.client_connection.encoding_notice(origins));
    notices
}

impl Resolved {
    /// Trims the host name of the flag and converts it to lower case.
    fn override_hostname(&mut self, flags: &FlagValues) -> Result<(), SettingErrors> {
        let is_flag =
            |(flag, text): &&(&Flag, String)| flag.path() == Some(HOSTNAME) && !text.is_empty();
        let Some((flag, text)) = flags.given.iter().rev().find(is_flag) else {
            return Ok(());
        };
        let name = text.trim().to_lowercase();
        if name.is_empty() {
            let invalid = InvalidSetting::value(HOSTNAME, text, "must not be blank");
            let mut origins = self.origins.clone();
            origins.insert(HOSTNAME, Origin::Flag(flag.name));
            return SettingErrors::check(&[invalid], &origins);
        }
        self.configuration.hostname_override = name;
        Ok(())
    }

    /// Returns the configuration file's path, from `--config`.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.origins.file.as_ref()
    }

    /// Returns the address of a server; `None` if it is switched off. It was validated.
    pub(super) fn server(address: &str) -> Option<std::net::SocketAddr> {
        let (host, port) = split_host_port(address)?;
        Some((host.parse::<std::net::IpAddr>().ok()?, port.parse().ok()?).into())
    }
}
