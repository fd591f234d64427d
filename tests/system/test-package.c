/* The packages: what is in them, and that a machine on which they are installed runs the main job and
 * is as before when they are gone. The machine is this one with all that changes in a layer of memory
 * (an overlay in a mount namespace), so dpkg and mpirun are the real ones and nothing stays. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "mpirun.h"

static char dir[] = "/tmp/sheaf-package.XXXXXX", out[1 << 16];

static int in_folder(const char *cmd, int seconds) {
    char line[8192];
    snprintf(line, sizeof line, "set -e; B='%s'; S='%s'; D=%s; cd $D\n%s", SHEAF_BUILD_DIR,
             SHEAF_SOURCE_DIR, dir, cmd);
    return run_command(line, seconds, out, sizeof out);
}

static void make_folder(void) { cr_assert_not_null(mkdtemp(dir)); }
static void make_packages(void) {
    make_folder();
    cr_assert_eq(
        in_folder(
            "umask 077; cpack -G DEB --config $B/CPackConfig.cmake -B $D/made > log 2>&1 || { "
            "cat log; exit 1; }; mv made/*.deb .; rm -r made",
            300),
        0, "%s", out);
}

static void remove_folder(void) { in_folder("rm -rf $D", 60); }

TestSuite(package, .init = make_packages, .fini = remove_folder, .timeout = 600);

Test(package, each_file_is_in_the_package_that_needs_it) {
    cr_assert_eq(
        in_folder("for p in *.deb; do dpkg-deb -c $p > ${p%%_*}.list; done\n"
                  "grep -h '^d' *.list | grep -v '^drwxr-xr-x' || true\n"
                  "has() { grep -qE \"$2\" $1.list || echo \"$1 has no $2\"; }\n"
                  "hasnt() { ! grep -E \"$2\" $1.list || echo \"$1 has $2\"; }\n"
                  "has libsheaf0 'libsheaf\\.so\\.0 '; has libsheaf0 'libsheaf-model\\.so\\.0\\.'\n"
                  "has libsheaf0 'libsheaf-cpu-avx2\\.so'; hasnt libsheaf0 'libsheaf\\.so -'\n"
                  "has libsheaf-dev include/sheaf/sheaf.h; has libsheaf-dev sheafConfig.cmake\n"
                  "has libsheaf-dev 'sheaf\\.pc'; has libsheaf-dev 'libsheaf\\.so -'\n"
                  "has sheaf-tools bin/sheaf-run; has sheaf-tools man1/sheaf-run.1\n"
                  "has sheaf-tools bash-completion/completions/sheaf-run\n"
                  "has ggml-backend-sheaf libggml-sheaf.so; has ggml-backend-sheaf sheaf-worker\n"
                  "for l in *.list; do grep -q 'doc/.*/copyright' $l || echo no licence: $l\n"
                  "    grep -E \"test-|helper-|fuzz-|/home/|$S\" $l || true; done\n"
                  "dpkg-deb -f sheaf-tools_*.deb Depends | grep -q 'libsheaf0 (= ' || echo no "
                  "dependency on the library\n"
                  "dpkg-deb -f libsheaf0_*.deb Depends | grep -q libhwloc || echo no dependency on "
                  "hwloc",
                  60),
        0, "%s", out);
    cr_assert_str_eq(out, "", "%s", out);
}

/* Root alone may mount; test suites of CI run as root. */
Test(package, an_installation_runs_and_leaves_nothing) {
    cr_assert_eq(geteuid(), 0, "only root can make the layer in which packages are installed");
    const int rc = in_folder(
        "cat > inside.sh <<'E'\n"
        "set -e\n"
        "cd /packages\n"
        "dpkg -i --force-depends *.deb > /packages/dpkg.log 2>&1 || { cat /packages/dpkg.log; exit "
        "1; }\n"
        "hash -r\n"
        "[ $(command -v sheaf-run) = /usr/bin/sheaf-run ]\n"
        "! ldd /usr/bin/sheaf-run | grep -E \"not found|$S\"\n"
        "unset LD_LIBRARY_PATH SHEAF_BACKEND_PATH\n"
        "mpirun --allow-run-as-root --oversubscribe -np 2 sheaf-run -m /packages/m.gguf -p 'And "
        "the' "
        "-n 12 --temp 0 --json > two.json\n"
        "sheaf-run -m /packages/m.gguf -p 'And the' -n 12 --temp 0 --json > one.json\n"
        "python3 -c 'import json; a, b = (json.load(open(f)) for f in (\"one.json\", "
        "\"two.json\")); "
        "assert a[\"text\"] == b[\"text\"] and len(a[\"text\"]) > 8, (a, b)'\n"
        "sheaf-info --version | grep -q '^sheaf 0'\n"
        "man -l /usr/share/man/man1/sheaf-run.1.gz 2>/dev/null | grep -q 'SYNOPSIS' || "
        "zgrep -q SYNOPSIS /usr/share/man/man1/sheaf-run.1.gz\n"
        "bash -c '. /usr/share/bash-completion/completions/sheaf-run; COMP_WORDS=(sheaf-run "
        "--mod); "
        "COMP_CWORD=1; _sheaf; [[ \" ${COMPREPLY[*]} \" == *\" --model \"* ]]'\n"
        "cc $S/examples/generate.c -o /packages/generate $(pkg-config --cflags --libs "
        "sheaf-model)\n"
        "/packages/generate /packages/m.gguf And 4 > /dev/null\n"
        "dpkg --purge --force-depends $(dpkg-query -W -f '${Package}\\n' | grep -E "
        "'^(libsheaf|sheaf-|ggml-backend-sheaf)') > /packages/dpkg.log 2>&1\n"
        "rm /packages/generate\n"
        "find / -xdev -iname '*sheaf*' -not -path '/packages/*' -not -path '/proc/*' -not -path "
        "\"$S/build/*\" -newer /packages/stamp -print > /packages/left 2>/dev/null || true\n"
        "! grep . /packages/left\n"
        "echo all is well\n"
        "E\n"
        "mkdir layer; cp $S/models/kjv-q8_0.gguf m.gguf\n"
        "export S\n"
        "exec unshare -m sh -c 'set -e; mount --make-rprivate /; mount -t tmpfs tmpfs $0/layer; cd "
        "$0/layer; mkdir up work root\n"
        "mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root\n"
        "mkdir -p root/packages; cp $0/*.deb $0/m.gguf $0/inside.sh root/packages; touch "
        "root/packages/stamp; sleep 1\n"
        "mount -t proc proc root/proc; mount --rbind /dev root/dev; mount -t tmpfs tmpfs root/tmp\n"
        "exec chroot root bash /packages/inside.sh' $D",
        400);
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
    cr_assert(strstr(out, "all is well"), "%s", out);
}

/* Of an installation by hand: scripts/uninstall. */
Test(uninstall, leaves_nothing, .init = make_folder, .fini = remove_folder, .timeout = 600) {
    cr_assert_eq(
        in_folder("cmake --install $B --prefix $D/prefix > log 2>&1 || { cat log; exit 1; }\n"
                  "mkdir b; cp $B/install_manifest.txt b\n"
                  "! $S/scripts/uninstall b --dryrun > log 2>&1\n"
                  "$S/scripts/uninstall --dry-run b | grep -q ' .*/prefix/bin/sheaf-run$'\n"
                  "test -x prefix/bin/sheaf-run\n"
                  "$S/scripts/uninstall b\n"
                  "find prefix -not -type d; find prefix -name '*sheaf*'\n"
                  /* a file of the same name outside of the stage is another one's */
                  "DESTDIR=$D/stage cmake --install $B --prefix $D/prefix > log 2>&1\n"
                  "cp $B/install_manifest.txt b; touch prefix/bin/sheaf-run\n"
                  "DESTDIR=$D/stage $S/scripts/uninstall b\n"
                  "rm prefix/bin/sheaf-run; find stage -not -type d -o -path '*/prefix/*sheaf*'\n"
                  "cp $B/install_manifest.txt b; ! $S/scripts/uninstall b 2> log\n"
                  "grep -q 'DESTDIR was another' log; test -e b/install_manifest.txt",
                  240),
        0, "%s", out);
    cr_assert_str_eq(out, "", "%s", out);
}
