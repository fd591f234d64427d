/* Only in sanitizer builds: modules that Open MPI loads stay mapped until the process ends, so that
 * the reports about them carry a module name and tests/sanitizers/{lsan,tsan}.supp can tell them from ours. */
int dlclose(void *handle);
int dlclose(void *handle) {
    (void)handle;
    return 0;
}
