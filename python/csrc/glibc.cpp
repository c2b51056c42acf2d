// A variable of glibc 2.32 that libstdc++'s headers read, for the older glibc that the wheel supports. False: reference counts are atomic.
extern "C" {
__attribute__((visibility("hidden"))) extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}
