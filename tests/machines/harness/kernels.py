"""Stock kernels of Debian, downloaded and not installed, and the first file system of a machine that boots one."""

import gzip
import lzma
import os
import pathlib
import platform
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
CACHE = ROOT / "target/machines"
GUEST = pathlib.Path(__file__).resolve().parents[1] / "guest"

# The names of the packages; the newest one that the lists of apt have is taken.
PACKAGES = {
    "5.10": r"linux-image-5\.10\.0-[0-9]+-amd64",
    "6.1": r"linux-image-6\.1\.0-[0-9]+-amd64",
    "6.12": r"linux-image-6\.12\.[0-9]+\+deb[0-9]+-amd64",
}
# Those of another Debian than the host's, which is asked for by the host's own sources.
RELEASES = {"5.10": "bullseye"}
# Enough to mount the host's root and to be told commands; all others are loaded from there.
FIRST_MODULES = ["virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay"]


class Unavailable(Exception):
    """A reason for which rows cannot be tried here."""


class Kernel:
    def __init__(self, series):
        self.series = series
        package = newest(series)
        self.tree = CACHE / "kernels" / package
        if not (self.tree / "complete").exists():
            download(package, self.tree, options(series))
        self.image = next((self.tree / "boot").glob("vmlinuz-*"))
        self.release = self.image.name.removeprefix("vmlinuz-")
        self.modules = self.tree / "lib/modules" / self.release
        self.initrd = self.make_initrd()

    def make_initrd(self):
        modules = self.with_dependencies(FIRST_MODULES)
        files = {"init": (GUEST / "init").read_bytes(), "busybox": pathlib.Path(shutil.which("busybox")).read_bytes()}
        for number, module in enumerate(modules):
            data = module.read_bytes()
            files[f"modules/{number:02}-{module.name.split('.')[0]}.ko"] = lzma.decompress(data) if module.suffix == ".xz" else data
        path = self.tree / "initrd"
        path.write_bytes(gzip.compress(archive(files), 1))
        return path

    def with_dependencies(self, names):
        """The files of these modules and of all that they need, each after those that it needs."""
        needs = {}
        for line in (self.modules / "modules.dep").read_text().splitlines():
            file, _, others = line.partition(":")
            needs[pathlib.Path(file).name.split(".")[0].replace("-", "_")] = (file, others.split())
        ordered = []
        for name in names:
            # A module that is not there is part of the kernel.
            file, others = needs.get(name.replace("-", "_"), (None, []))
            for each in [*reversed(others), *([file] if file else [])]:
                if self.modules / each not in ordered:
                    ordered.append(self.modules / each)
        return ordered


def newest(series):
    """Of the package lists, or where these are not to be had, of what was downloaded before."""
    pattern = f"^{PACKAGES[series]}$"
    listed = subprocess.run(["apt-cache", *options(series), "search", "--names-only", pattern], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    names += [path.parent.name for path in (CACHE / "kernels").glob("*/complete") if re.match(pattern, path.parent.name)]
    if not names:
        raise Unavailable(f"no package of Linux {series} can be had")
    return max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def options(series):
    """For apt: lists of its own for another Debian's packages, read once."""
    if series not in RELEASES:
        return []
    folder = CACHE / "apt" / RELEASES[series]
    words = [f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=/dev/null", f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache"]
    words = [word for option in words for word in ("-o", option)]
    if not (folder / "sources.list").exists():
        for each in "lists", "cache":
            (folder / each / "partial").mkdir(parents=True, exist_ok=True)
        own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        targets = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"], capture_output=True, text=True).stdout
        # A release that is not supported any more has lists whose date has passed.
        sources = {f"deb [arch=amd64 check-valid-until=no] {line.replace(own, RELEASES[series])} main\n" for line in targets.splitlines() if own and own in line}
        (folder / "sources.list").write_text("".join(sorted(sources)))
        subprocess.run(["apt-get", *words, "update", "-qq"], capture_output=True)
    return words


def download(package, tree, options):
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    got = subprocess.run(["apt-get", *options, "download", "-q", package], cwd=tree, capture_output=True, text=True)
    files = list(tree.glob("*.deb"))
    if got.returncode or not files:
        raise Unavailable(f"{package} cannot be downloaded: {got.stderr.strip().splitlines()[-1:]}")
    subprocess.run(["dpkg-deb", "-x", files[0], tree], check=True)
    files[0].unlink()
    release = next((tree / "lib/modules").iterdir()).name
    subprocess.run(["depmod", "-b", tree, release], check=True)
    (tree / "complete").touch()


def archive(files):
    """These files as a cpio archive (newc), all of them executable, with the directories that they are in."""
    out = bytearray()
    entries = [(str(folder), 0o040755, b"") for folder in sorted({parent for name in files for parent in pathlib.PurePath(name).parents}) if str(folder) != "."]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    entries.append(("TRAILER!!!", 0, b""))
    for number, (name, mode, data) in enumerate(entries):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def own_binary():
    """The program under test without its debug information, which an emulated machine would take long to read."""
    built = pathlib.Path(os.environ.get("BATON", ROOT / "target/debug/baton"))
    stripped = CACHE / "baton"
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "-o", stripped, built], check=True)
    return stripped
