/* The Python package: its wheel, built by the standard backend, unpacked and used by one process and
 * by ranks of a job; with numpy's arrays, and without. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "mpirun.h"

#define PYTHON "/usr/bin/python3" /* has Debian's numpy */

static char dir[] = "/tmp/sheaf-python.XXXXXX", out[1 << 15];

static int run_in(const char *cmd, int seconds) {
    char line[4096];
    snprintf(line, sizeof line,
             "set -e; cd %s; export PYTHONPATH=%s/wheel "
             "LIBSHEAF_MODEL='%s/lib/libsheaf-model.so.0'; S='%s'\n%s",
             dir, dir, SHEAF_BUILD_DIR, SHEAF_SOURCE_DIR, cmd);
    return run_command(line, seconds, out, sizeof out);
}

/* A copy of the sources: setuptools writes beside them. */
static void build_wheel(void) {
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(run_in("cp -r $S/python source; mkdir wheel made\n" PYTHON
                        " -c \"import os; os.chdir('source'); from setuptools import build_meta; "
                        "build_meta.build_wheel('../made')\" > log 2>&1 || { cat log; exit 1; }\n"
                        "cd wheel && " PYTHON " -m zipfile -e ../made/sheaf-0*-py3-none-any.whl .",
                        120),
                 0, "%s", out);
}

static void remove_folder(void) { run_in("rm -rf $PWD", 30); }

TestSuite(python, .init = build_wheel, .fini = remove_folder, .timeout = 300);

#define SCRIPT "$S/tests/system/python_package.py $S/models/kjv-q8_0.gguf"

static void check_all(const char *command) {
    cr_expect_eq(run_in(command, 120), 0, "%s", out);
    cr_expect(strstr(out, "ok an exception of a callback comes out"), "%s", out);
}

Test(python, one_process_with_arrays) { check_all(PYTHON " " SCRIPT " --arrays"); }

/* numpy is no need: a folder of that name hides it. */
Test(python, one_process_without_numpy) {
    check_all("mkdir no; echo 'raise ImportError' > no/numpy.py\n"
              "PYTHONPATH=$PWD/no:$PYTHONPATH " PYTHON " " SCRIPT);
}

#define MPIRUN                                                                                     \
    "mpirun --allow-run-as-root --oversubscribe -x PYTHONPATH -x LIBSHEAF_MODEL -np 2 " PYTHON " "

Test(python, two_ranks) { check_all(MPIRUN SCRIPT); }

Test(python, the_example_compares_divided_and_whole) {
    cr_expect_eq(run_in(MPIRUN "$S/python/examples/compare_split.py $S/models/kjv-q8_0.gguf", 120),
                 0, "%s", out);
    cr_expect(strstr(out, "2 members") && strstr(out, "1 members") && strstr(out, "the same"), "%s",
              out);
}

/* A rank that raises an exception leaves none waiting, and says it once. */
Test(python, an_exception_of_one_rank_ends_the_job) {
    cr_assert_eq(run_in("cat > one.py <<'E'\n"
                        "import sheaf, sys\n"
                        "sheaf.init()\n"
                        "if sheaf.rank() == 1:\n"
                        "    raise ValueError('out of paper')\n"
                        "sheaf.Model(sys.argv[1]).eval([1])\n"
                        "E\n"
                        "s=0; " MPIRUN "one.py $S/models/kjv-q8_0.gguf || s=$?; [ $s -ne 0 ]",
                        60),
                 0, "%s", out);
    cr_expect(strstr(out, "out of paper"), "%s", out);
}
