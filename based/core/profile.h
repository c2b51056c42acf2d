// Ranges of time of a running command, for `--profile FILE`: a JSON file in Chrome's trace event format, which https://ui.perfetto.dev
// opens. docs/profiling.md describes the file for users. While nothing is recorded, a range costs one relaxed atomic load.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace based {

using ProfileClock = std::chrono::steady_clock;

// phases: a few ranges a step. layers: ranges of each part of the model, also. A range is recorded if its level is at most the session's.
enum class ProfileLevel : int { off, phases, layers };

// A number or a text that is shown with a range. `name` and `text` are not copied: they are literals or results of profile_name().
struct ProfileArgument {
  const char* name = nullptr;
  int64_t number = 0;
  const char* text = nullptr;  // if not null, shown instead of the number
};

// Those without a name are left out.
struct ProfileArguments {
  ProfileArgument first = {}, second = {}, third = {};
};

struct ProfileEvent {
  ProfileLevel level = ProfileLevel::phases;
  const char* name = nullptr;  // not copied
  ProfileClock::time_point begin, end;
  ProfileArguments arguments = {};
};

// A part of a request that several threads work on. Spans with the same track and id are drawn in one row, so they must be nested or
// disjoint.
struct ProfileSpan {
  const char* name = nullptr;   // not copied
  const char* track = nullptr;  // the kind of the row: "request" or "job"; not copied
  uint64_t id = 0;
  ProfileClock::time_point begin, end;
  std::string request;  // X-Request-Id
  ProfileArguments arguments = {};
};

namespace profile_detail {
extern std::atomic<ProfileLevel> level;
}

// Whether ranges of this level are recorded at present.
inline bool profiles(ProfileLevel wanted) { return profile_detail::level.load(std::memory_order_relaxed) >= wanted; }

// Records the time between its construction and its destruction on the calling thread's track, and as an NVTX range in programs with CUDA.
// Ranges of a thread must be nested: the one that begins last ends first.
class ProfileRange {
 public:
  ProfileRange(ProfileLevel level, const char* name, const ProfileArguments& arguments = {}) {
    if (profiles(level)) begin(level, name, arguments);
  }
  ~ProfileRange() {
    if (event_) end();
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  void begin(ProfileLevel level, const char* name, const ProfileArguments& arguments);
  void end();

  std::optional<ProfileEvent> event_;  // empty: not recorded
};

struct ProfileOptions {
  std::string process = "based";  // the name of the process in the file
  // Limits the memory of a session to about 60 MB. Ranges of layers are dropped after three quarters of it, all others after all of it. The
  // file has the number of dropped ones.
  int64_t max_events = 500'000;
  int64_t layer_steps = 0;  // next_profiled_step() calls after which ranges of layers are no longer recorded; 0: no limit
};

// Records from its construction to finish(). At most one session with a path exists at a time.
class ProfileSession {
 public:
  // An empty path records nothing. Throws UsageError, naming --profile, if the file cannot be written.
  explicit ProfileSession(std::string path, const ProfileOptions& options = {});
  // After an exception or an interruption, as finish(), but without events no file is written, and if it cannot be written, a warning says
  // so.
  ~ProfileSession();
  ProfileSession(const ProfileSession&) = delete;
  ProfileSession& operator=(const ProfileSession&) = delete;

  // Ends the recording and writes the file, atomically. Ranges that have not ended are left out. Throws Error.
  void finish();

 private:
  std::string path_;  // empty: nothing is recorded
};

// Called at the begin of each training step; see ProfileOptions::layer_steps.
void next_profiled_step();

// Returns a copy of the text that stays valid until the process ends. For a bounded number of different names, such as those of layers.
const char* profile_name(const std::string& name);

// The name of the calling thread's track. `name` is not copied.
void name_profile_thread(const char* name);

// Records an event on a track that is no thread, such as the work of a GPU. The track is created by its first event.
void add_profile_event(const std::string& track, const ProfileEvent& event);
void add_profile_span(ProfileSpan span);

// Functions of higher layers. A null function is not called.
struct ProfileHooks {
  void (*push)(const char* name) = nullptr;  // at the begin of each recorded range, on its thread
  void (*pop)() = nullptr;                   // at its end
  void (*flush)() = nullptr;                 // before the file is written: adds the events that are still pending
};
ProfileHooks& profile_hooks();  // set before a session begins

}  // namespace based
