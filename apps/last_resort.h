// Orderly ends for uncaught exceptions and for libraries that call exit().
#pragma once

namespace based::apps {

// An uncaught exception in any thread, also in the libraries' initialisers, ends the program with a message and status 1. So does a
// library's call of exit(), for example libgomp's when it cannot start its threads: static destructors would run while other threads still
// work.

// Where the address space is limited (ulimit -v): one heap for all threads, and so few threads that most of the space is left for data.
// Says so where there are fewer than usual.
void fit_threads_to_address_space();

}  // namespace based::apps
