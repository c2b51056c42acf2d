// What the program does where it would otherwise end by a signal, or in the middle of its own threads.
#pragma once

namespace based::apps {

// From before the libraries' initialisers on, an exception that nothing catches, in whatever thread, is a message and exit status 1. So is
// a library's call of exit, as libgomp's where it cannot start its threads: destructors would run below the threads that still work.

// Where the address space is limited (ulimit -v): one heap for all threads, and so few threads that most of the space is left for data.
// Says so where there are fewer than usual.
void fit_threads_to_address_space();

}  // namespace based::apps
