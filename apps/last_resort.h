// Ends the program with a message after an uncaught exception, and when a library calls exit().
#pragma once

namespace based::apps {

// Linking last_resort.cpp installs handlers. An uncaught exception in any thread, including static initializers of libraries, ends the
// program with a message and status 1. The same holds when a library calls exit(), as libgomp does when it cannot start its threads: the C
// library's exit() would run static destructors while other threads still work.

// If the address space is limited (ulimit -v), uses one heap for all threads and reduces the number of threads, so that most of the space
// is left for data. Prints a message if there are fewer threads than usual.
void fit_threads_to_address_space();

}  // namespace based::apps
