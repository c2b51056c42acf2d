// The key-value store of a job, c10d's TCPStore: connections to it, and the exchange of payloads through it.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "based/parallel/environment.h"
#include "based/parallel/host_collectives.h"

namespace based {

using StoreHandle = c10::intrusive_ptr<c10d::Store>;

// A connection to the store of the job. A thread needs its own, because a connection serves one request at a time. With `serve` this
// process serves the store, until the handle is destroyed. Throws Error if nothing answers at the address within `patience`, or if its port
// cannot be served.
StoreHandle connect_store(const RankEnvironment& rank, bool serve, std::chrono::milliseconds patience);

// "the store of this job at HOST:PORT", and who serves it.
std::string store_place(const RankEnvironment& rank);
std::string store_server(const RankEnvironment& rank);

// The message for an error of a connection that worked before.
std::string store_failure(const RankEnvironment& rank, const std::exception& error);

// Wait for this long before an error of the store is thrown. This rank's Watch, if there is one, notices a store that has ended at its next
// poll and ends the process with kConsequenceExit; it may also know the reason.
inline constexpr std::chrono::seconds kWatchPatience{4};

// From now on c10d's warnings are not logged, unless TORCH_CPP_LOG_LEVEL is set. They have stacks, and Watch reports the same events in one
// line each.
void silence_store_warnings();

// Key `operation/rank` holds a payload, in several parts if it is long. The last rank that has read them deletes the keys. collect() throws
// Error, naming the ranks that have not posted, after `timeout` for operations that are not patient, and after `patience` for the others.
// If the connection fails, post() and collect() throw Error after kWatchPatience.
std::unique_ptr<Exchange> make_store_exchange(StoreHandle store, const RankEnvironment& rank, std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds patience);

// The names of the ranks whose key `prefix`/rank/`suffix` is absent: "rank 1, rank 3".
std::string absent_ranks(c10d::Store& store, const std::string& prefix, const std::string& suffix, int64_t world);

// Text of an exception of c10d without its stack.
std::string store_message(const std::exception& error);

}  // namespace based
