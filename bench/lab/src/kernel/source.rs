//! The Debian packages of the kernel's source and of the tools that build it.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// A source archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// `linux-source-*.tar.xz`.
    pub(super) archive: PathBuf,
    /// The package's version, such as `6.1.158-1`; without dpkg the series, such as `6.1`.
    pub(super) version: String,
}

/// Returns the newest source; first installs missing packages if root or sudo permits it.
pub(super) fn ready() -> Result<Source> {
    let missing = missing();
    if !missing.is_empty() {
        install(&missing)?;
    }
    newest(Path::new("/usr/src"))
        .context("/usr/src/linux-source-*.tar.xz is missing; install Debian's linux-source")
}

/// Returns the missing packages.
fn missing() -> Vec<&'static str> {
    let mut packages: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !is_in_path(tool))
        .map(|&(_, package)| package)
        .collect();
    packages.dedup();
    if newest(Path::new("/usr/src")).is_none() {
        packages.push("linux-source");
    }
    packages
}

fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !is_in_path("apt-get") {
        bail!(
            "building the lab kernel needs these Debian packages or their equivalents: {list}; \
             or set {} to a kernel that was built elsewhere",
            super::VARIABLE
        );
    }
    let sudo: &[&str] = if rustix::process::geteuid().is_root() {
        &[]
    } else if Command::new("sudo")
        .args(["-n", "true"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        &["sudo", "-n"]
    } else {
        bail!("building the lab kernel needs packages; run: sudo apt-get install {list}");
    };
    eprintln!("lab: installing {list}");
    let apt = |arguments: &[&str]| {
        let line = [
            sudo,
            &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"],
            arguments,
        ];
        let line = line.concat();
        Command::new(line[0]).args(&line[1..]).output()
    };
    let all = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let mut output = apt(&all).context("running apt-get")?;
    if !output.status.success() {
        // The list of packages may be old or missing.
        apt(&["update"]).context("running apt-get")?;
        output = apt(&all).context("running apt-get")?;
    }
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("apt-get install {list} failed:\n{}", words.trim_end());
    }
    Ok(())
}

/// Returns the archive in `directory` with the highest version.
fn newest(directory: &Path) -> Option<Source> {
    let (series, archive) = fs::read_dir(directory)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            Some((series(&name)?.to_owned(), entry.path()))
        })
        .max_by_key(|(series, _)| numbers(series))?;
    let version = package_version(&series).unwrap_or(series);
    Some(Source { archive, version })
}

/// Returns the series in a file name: `6.1` for `linux-source-6.1.tar.xz`.
fn series(name: &OsStr) -> Option<&str> {
    let series = name.to_str()?.strip_prefix("linux-source-")?;
    series.strip_suffix(".tar.xz")
}

/// Returns the numbers in `version`; compared as numbers, 6.12 is newer than 6.2.
fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Returns dpkg's version of the package, which changes with every point release.
fn package_version(series: &str) -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}"])
        .arg(format!("linux-source-{series}"))
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    // The version becomes part of a file name.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-+~".contains(c);
    let is_version =
        output.status.success() && !version.is_empty() && version.chars().all(is_plain);
    is_version.then_some(version)
}

fn is_in_path(tool: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(tool).is_file())
}

/// The programs that the build runs, with their packages.
const TOOLS: [(&str, &str); 7] = [
    ("gcc", "build-essential"),
    ("make", "build-essential"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_is_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "linux-source-6.2.tar.xz",
            "linux-source-6.12.tar.xz",
            "linux-source-7.0.tar",
            "linux-config-9.0",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let source = newest(directory.path()).unwrap();
        assert!(source.archive.ends_with("linux-source-6.12.tar.xz"));
        assert!(source.version.starts_with("6.12"));
        assert_eq!(newest(&directory.path().join("none")), None);
    }
}
