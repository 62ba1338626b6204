//! The build of a kernel, from an archive to a file in the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::available_parallelism,
};

use anyhow::{Context, Result, bail};

use super::{
    Flavour,
    cache::Cache,
    progress::Steps,
    source::{self, Source},
};

/// Builds the newest source. The caller holds the cache's lock.
pub(super) fn run(cache: &Cache, flavour: Flavour) -> Result<PathBuf> {
    let source = source::ready()?;
    let kernel = cache.kernel(&source.version, flavour);
    eprintln!(
        "lab: building User-Mode Linux {} once, for {}; about 8 minutes on two processors",
        source.version,
        kernel.display()
    );
    let scratch = cache.kernel_scratch()?;
    let steps = Steps::begin(&cache.log())?;
    let built = compile(&source, flavour, scratch.path(), &steps)?;
    // Both paths are on one file system, so the rename is atomic.
    fs::rename(&built, &kernel).with_context(|| format!("moving it to {}", kernel.display()))?;
    Ok(kernel)
}

/// Unpacks, configures and compiles in `directory`; returns the kernel's path.
fn compile(source: &Source, flavour: Flavour, directory: &Path, steps: &Steps) -> Result<PathBuf> {
    steps.run(
        "unpacking the source",
        Command::new("tar")
            .args(["--extract", "--strip-components=1"])
            .arg("--file")
            .arg(&source.archive)
            .arg("--directory")
            .arg(directory),
    )?;

    steps.run(
        "configuring for User-Mode Linux",
        make(directory).arg("defconfig"),
    )?;
    let mut merge = Command::new("scripts/kconfig/merge_config.sh");
    merge.args(["-m", ".config"]);
    for (number, fragment) in flavour.fragments().iter().enumerate() {
        let name = format!("lab-{number}.config");
        fs::write(directory.join(&name), fragment).with_context(|| format!("writing {name}"))?;
        merge.arg(name);
    }
    steps.run("configuring for the lab", user_mode(&mut merge, directory))?;
    steps.run(
        "completing the configuration",
        make(directory).arg("olddefconfig"),
    )?;
    let config = directory.join(".config");
    let config = fs::read_to_string(&config).context("reading the configuration")?;
    if flavour == Flavour::WithoutIptables && has(&config, XTABLES) {
        bail!(
            "an option of {} requires {XTABLES}",
            source.archive.display()
        );
    }
    if let Some(absent) = REQUIRED.into_iter().find(|option| !has(&config, option)) {
        bail!(
            "{} has no {absent}=y for User-Mode Linux",
            source.archive.display()
        );
    }

    let jobs = available_parallelism().map_or(1, usize::from);
    steps.run(
        "compiling",
        make(directory).arg(format!("--jobs={jobs}")).arg("linux"),
    )?;
    steps.run(
        "stripping",
        Command::new("strip").arg("linux").current_dir(directory),
    )?;
    Ok(directory.join("linux"))
}

fn make(directory: &Path) -> Command {
    let mut make = Command::new("make");
    user_mode(&mut make, directory);
    make
}

/// Makes `command` build User-Mode Linux in `directory`.
///
/// Removes environment variables that are meant for builds of other kernels.
fn user_mode<'a>(command: &'a mut Command, directory: &Path) -> &'a mut Command {
    for name in OTHER_BUILDS {
        command.env_remove(name);
    }
    command.current_dir(directory).env("ARCH", "um")
}

fn has(config: &str, option: &str) -> bool {
    let line = format!("{option}=y");
    config.lines().any(|it| it == line)
}

/// Variables that change what make or the kernel's makefiles do.
const OTHER_BUILDS: [&str; 9] = [
    "CROSS_COMPILE",
    "KBUILD_OUTPUT",
    "KCFLAGS",
    "KCONFIG_CONFIG",
    "LLVM",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "SUBARCH",
];

/// The option that all of iptables requires.
const XTABLES: &str = "CONFIG_NETFILTER_XTABLES";

/// The options that the lab requires. `lab.config` has more options, which some kernels lack.
const REQUIRED: [&str; 5] = [
    "CONFIG_HOSTFS",
    "CONFIG_DEVTMPFS",
    "CONFIG_VETH",
    "CONFIG_IP_VS",
    "CONFIG_NF_TABLES",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fragment_sets_all_required_options() {
        for option in REQUIRED {
            let [fragment] = Flavour::Full.fragments() else {
                panic!("one file");
            };
            assert!(has(fragment, option), "{option}");
        }
        assert!(!has(
            "# CONFIG_IP_VS is not set\nCONFIG_IP_VS_RR=y",
            "CONFIG_IP_VS"
        ));
    }
}
