#!/usr/bin/env python3
"""Checks packaging/Containerfile, the recipe for Spack and the version against the tree, without podman and Spack.

    tests/system/recipes.py               prints what is wrong, a line each; exit status 1 if anything is
    tests/system/recipes.py --self-check  breaks each rule once in a copy of the texts: each must be found

Of the image: known instructions; packages of Debian 12 (where apt-cache has their lists); all that scripts/package wants
to find is installed; the .deb that it installs are among those that cmake/package.cmake makes; CMD is one of our tools.
Of the recipe: valid Python; its definitions are options of the CMake files, with values that these take, and none is
left to look for what there is; its dependencies have the versions and languages that CMakeLists.txt asks for; its
licence is that of the tree.
Of the version: the changelog begins with that of CMakeLists.txt, and the Python package has it."""
import ast, functools, glob, os, re, shlex, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "CMD"}
SPACK_NEEDS = {"c": "LANGUAGES C", "cmake": "cmake_minimum_required", "mpi": "find_package(MPI", "hwloc": "hwloc",
               "pkgconfig": "find_package(PkgConfig", "python": "Python3", "ninja": "", "cxx": "nvcc", "nccl": "nccl.h"}


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def cmake_text():
    names = ["CMakeLists.txt"] + sorted(glob.glob("**/CMakeLists.txt", root_dir=os.path.join(ROOT, "src"), recursive=True))
    return "\n".join(read(n if n == "CMakeLists.txt" else "src/" + n) for n in names) + \
        "\n".join(read("cmake/" + n) for n in glob.glob("*.cmake", root_dir=os.path.join(ROOT, "cmake")))


# ---- the image ----

def instructions(text):
    """(word, arguments) of each instruction; lines that end with a backslash go on."""
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    return [tuple(l.split(None, 1)) for l in re.sub(r"\\\n", " ", text).split("\n") if l.strip()]


def installed(run):
    """Packages, and .deb files, of the apt-get install lines of one RUN."""
    packages, debs = [], []
    for command in re.split(r"&&|;", run):
        words = shlex.split(command)
        if words[:2] == ["apt-get", "install"]:
            for w in words[2:]:
                if w.endswith(".deb"):
                    debs.append(os.path.basename(w))
                elif not w.startswith("-"):
                    packages.append(w)
    return packages, debs


def needs_of_package_script():
    """The Debian packages that scripts/package would install if they were missing."""
    words = re.findall(r"'[^'|]*\|([a-z0-9.+-]+)'", re.search(r"needs_build=\((.*?)\n\)", read("scripts/lib.sh"), re.S).group(1))
    return set(words + re.findall(r"'[^'|]*\|([a-z0-9.+-]+)'", read("scripts/package"))) - {"gzip"}  # Debian's base has gzip


@functools.lru_cache
def debian():
    """Names of all packages; none where apt has no lists."""
    if not glob.glob("/var/lib/apt/lists/*_Packages*"):
        return set()
    return set(subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True).stdout.split())


def check_image(text):
    wrong, stages = [], []
    for word, rest in instructions(text):
        if word not in INSTRUCTIONS:
            wrong.append(f"image: {word} is no instruction that it uses")
        elif word == "FROM":
            stages.append({"from": rest.split()[0], "packages": [], "debs": [], "text": ""})
        if not stages:
            wrong.append("image: begins without FROM")
            break
        stages[-1]["text"] += f"{word} {rest}\n"
        if word == "RUN":
            packages, debs = installed(rest)
            stages[-1]["packages"] += packages
            stages[-1]["debs"] += debs
    if len(stages) != 2:
        return wrong + [f"image: {len(stages)} stages, a build and the image are wanted"]
    build, image = stages
    if build["from"] != image["from"]:
        wrong.append(f"image: packages for {build['from']} are installed in {image['from']}")
    missing = sorted(needs_of_package_script() - set(build["packages"]))
    wrong += [f"image: scripts/package wants {p}" for p in missing]
    wrong += [f"image: Debian has no package {p}" for p in build["packages"] + image["packages"] if debian() and p not in debian()]
    made = dict(pair.split(":") for pair in re.search(r"set\(PACKAGES ([^)]*)\)", read("cmake/package.cmake")).group(1).split())
    wrong += [f"image: {d} is made by nothing" for d in image["debs"] if d.split("_")[0] not in made.values()]
    if not image["debs"]:
        wrong.append("image: installs no package of ours")
    out = re.search(r"scripts/package (/\S+)", build["text"])
    if not out or f"COPY --from=build {out.group(1)}/" not in image["text"]:
        wrong.append("image: the folder of scripts/package is not that of COPY")
    program = re.search(r'^CMD \["(\S+)"\]', image["text"], re.M)
    if not program or not glob.glob(os.path.join(ROOT, "tools/*", program.group(1) + ".c")):
        wrong.append("image: CMD is none of our tools")
    return wrong


# ---- the recipe ----

def options(cmake):
    """Names that a user of CMake may set, with the values of those that list them."""
    names = set(re.findall(r"option\((SHEAF_\w+)", cmake)) | set(re.findall(r"set\((SHEAF_\w+)[^)]*?CACHE", cmake))
    values = {n: v.split() for n, v in re.findall(r"set_property\(CACHE (SHEAF_\w+) PROPERTY STRINGS ([^)]*)\)", cmake)}
    return names, values


def texts(node):
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def calls(tree, name):
    return [c for c in ast.walk(tree) if isinstance(c, ast.Call) and
            name in (getattr(c.func, "id", None), getattr(c.func, "attr", None))]


def check_recipe(text):
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        return [f"recipe: {e}"]
    wrong, cmake = [], cmake_text()
    if [c.name for c in tree.body if isinstance(c, ast.ClassDef)] != ["Sheaf"]:
        wrong.append("recipe: the class of the package sheaf is Sheaf")
    names, values = options(cmake)
    for call in calls(tree, "define"):
        name = call.args[0].value
        if name not in names:
            wrong.append(f"recipe: {name} is no option of CMakeLists.txt")
        elif name in values:
            results = [call.args[1].body, call.args[1].orelse] if isinstance(call.args[1], ast.IfExp) else [call.args[1]]
            wrong += [f"recipe: {name} takes {values[name]}" for r in results if getattr(r, "value", None) not in values[name]]
    defined = {call.args[0].value for call in calls(tree, "define")}
    wrong += [f"recipe: {n} looks for what there is if the recipe leaves it out"
              for n, taken in values.items() if "AUTO" in taken and n not in defined]
    wanted = {}
    for call in calls(tree, "depends_on"):
        name, _, version = call.args[0].value.partition("@")
        wanted[name] = version.rstrip(":")
        if name not in SPACK_NEEDS or SPACK_NEEDS[name] not in cmake:
            wrong.append(f"recipe: nothing in CMakeLists.txt wants {name}")
    wrong += [f"recipe: CMakeLists.txt wants {n}" for n in SPACK_NEEDS if n not in wanted]
    least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+?)(\.\.\.|\))", cmake).group(1)
    if wanted.get("cmake") != least:
        wrong.append(f"recipe: CMake {wanted.get('cmake')}, CMakeLists.txt wants {least}")
    licences = [a.value for c in calls(tree, "license") for a in c.args]
    if licences != ["MIT"] or not read("LICENSE").startswith("MIT"):
        wrong.append(f"recipe: licence {licences}, LICENSE is MIT's")
    return wrong


# ---- the version ----

def project_version():
    return re.search(r"project\(sheaf VERSION ([\d.]+)", read("CMakeLists.txt")).group(1)


def check_changelog(text):
    heads = [h for h in re.findall(r"^## (.*)$", text, re.M) if h != "Unreleased"]
    if re.fullmatch(re.escape(project_version()) + r" \(\d{4}-\d\d-\d\d\)", heads[0] if heads else ""):
        return []
    return [f"version: the changelog begins with '{heads[:1]}', CMakeLists.txt says {project_version()}"]


def check_python(text):
    version = re.search(r'^version = "([^"]*)"', text, re.M)
    if version and version.group(1) == project_version():
        return []
    return [f"version: pyproject.toml has another one than CMakeLists.txt, {project_version()}"]


# ---- each rule broken once ----

BROKEN = [
    ("image", "RUN apt-get", "RUNN apt-get"), ("image", " libhwloc-dev", ""), ("image", "openssh-client", "openssh-klient"),
    ("image", "sheaf-tools_", "sheaf-tulls_"), ("image", "--from=build /packages/", "--from=build /package/"),
    ("image", '["sheaf-info"]', '["sheaf-infos"]'), ("image", "FROM debian:bookworm\n", "FROM debian:trixie\n"),
    ("recipe", "SHEAF_HARDENING", "SHEAF_HARDNESS"), ("recipe", '"ON" if', '"YES" if'),
    ("recipe", '"SHEAF_NCCL"', '"SHEAF_CUDA"'), ("recipe", "@3.22:", "@3.16:"),
    ("recipe", 'depends_on("mpi")', ""), ("recipe", '"MIT"', '"GPL"'), ("recipe", "class Sheaf", "class Sheafs"),
    ("recipe", "def cmake_args(self):", "def cmake_args(self)"), ("changelog", "## 0.", "## 9."), ("python", '= "0.', '= "9.'),
]
CHECKS = {"image": ("packaging/Containerfile", check_image), "recipe": ("packaging/spack/packages/sheaf/package.py", check_recipe),
          "changelog": ("CHANGELOG.md", check_changelog), "python": ("python/pyproject.toml", check_python)}


def self_check():
    wrong = []
    for kind, old, new in BROKEN:
        path, check = CHECKS[kind]
        text = read(path)
        if old not in text:
            wrong.append(f"{path} has no '{old}' to break")
        elif not check(text.replace(old, new)):
            if old != "openssh-client" or debian():
                wrong.append(f"'{new}' for '{old}' in {path} is not found")
    return wrong


def main():
    findings = self_check() if sys.argv[1:] == ["--self-check"] else [w for p, check in CHECKS.values() for w in check(read(p))]
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


sys.exit(main())
