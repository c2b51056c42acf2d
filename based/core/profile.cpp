#include "based/core/profile.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "based/core/error.h"
#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/log.h"

namespace based {

namespace profile_detail {
std::atomic<ProfileLevel> level{ProfileLevel::off};
}

namespace {

constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr int64_t kFirstTrack = int64_t{1} << 31;  // numbers of tracks that are no threads, above those of threads

// The events of one thread or of another track.
struct ProfileBuffer {
  std::mutex mutex;
  int64_t number = 0;
  std::string name;
  std::deque<ProfileEvent> events;
};

class ProfileRecorder {
 public:
  void start(const ProfileOptions& options) {
    const std::lock_guard lock(mutex_);
    BASED_ASSERT(!recording_);
    options_ = options;
    std::erase_if(threads_, [](const auto& buffer) { return buffer.use_count() == 1; });  // their threads have ended
    for (const auto& buffer : threads_) {
      const std::lock_guard buffer_lock(buffer->mutex);
      buffer->events.clear();
    }
    tracks_.clear(), spans_.clear();
    events_ = dropped_ = steps_ = 0;
    begin_ = ProfileClock::now();
    recording_ = true;
    profile_detail::level = ProfileLevel::layers;
  }

  void stop() {
    profile_detail::level = ProfileLevel::off;
    if (profile_hooks().flush != nullptr) profile_hooks().flush();
    recording_ = false;
  }
  bool is_empty() const { return events_ == 0; }

  // Returns the number of events that the file has.
  int64_t stop_and_write(const std::string& path) {
    stop();
    const std::lock_guard lock(mutex_);
    write(path);
    if (dropped_ > 0)
      log_warning(path + ": " + std::to_string(dropped_) + " events are left out, because a profile has at most " +
                  std::to_string(options_.max_events) + "; profile a shorter run");
    return events_;
  }

  void add(ProfileBuffer& buffer, const ProfileEvent& event) {
    if (!takes(event.level, event.begin)) return;
    const std::lock_guard lock(buffer.mutex);
    buffer.events.push_back(event);
  }
  void add(ProfileSpan span) {
    if (!takes(ProfileLevel::phases, span.begin)) return;
    const std::lock_guard lock(mutex_);
    spans_.push_back(std::move(span));
  }

  void next_step() {
    if (recording_ && options_.layer_steps > 0 && ++steps_ > options_.layer_steps) profile_detail::level = ProfileLevel::phases;
  }

  std::shared_ptr<ProfileBuffer> make_thread_buffer() {
    auto buffer = std::make_shared<ProfileBuffer>();
    buffer->number = ::syscall(SYS_gettid);
    buffer->name = buffer->number == ::getpid() ? "main" : "thread";
    const std::lock_guard lock(mutex_);
    threads_.push_back(buffer);
    return buffer;
  }
  std::shared_ptr<ProfileBuffer> track(const std::string& name) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<ProfileBuffer>& buffer = tracks_[name];
    if (buffer) return buffer;
    buffer = std::make_shared<ProfileBuffer>();
    buffer->number = kFirstTrack + static_cast<int64_t>(tracks_.size());
    buffer->name = name;
    return buffer;
  }
  const char* name(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return names_.insert(text).first->c_str();
  }

 private:
  // Counts the event. Returns false if it is not recorded: it began before the session, or there are too many.
  bool takes(ProfileLevel level, ProfileClock::time_point begin) {
    if (!recording_ || begin < begin_.load()) return false;
    const int64_t most = level == ProfileLevel::layers ? options_.max_events / 4 * 3 : options_.max_events;
    int64_t count = events_;
    while (count < most)
      if (events_.compare_exchange_weak(count, count + 1)) return true;
    ++dropped_;
    return false;
  }

  static double microseconds(ProfileClock::duration time) {
    return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()) / 1000;
  }
  double microseconds(ProfileClock::time_point time) const { return microseconds(time - begin_.load()); }
  static Json json_of(const ProfileArguments& arguments) {
    Json json = Json::object();
    for (const ProfileArgument* one : {&arguments.first, &arguments.second, &arguments.third}) {
      if (one->name == nullptr) continue;
      json[one->name] = one->text != nullptr ? Json(one->text) : Json(one->number);
    }
    return json;
  }
  static Json metadata(const char* kind, int64_t thread, const std::string& name) {
    return {{"ph", "M"}, {"name", kind}, {"pid", ::getpid()}, {"tid", thread}, {"args", {{"name", name}}}};
  }

  template <class Write>
  void write_events(ProfileBuffer& buffer, const Write& write_one) const {
    const std::lock_guard lock(buffer.mutex);
    if (buffer.events.empty()) return;
    // An outer range comes before those inside it, also where both begin at the same time.
    std::stable_sort(buffer.events.begin(), buffer.events.end(),
                     [](const ProfileEvent& a, const ProfileEvent& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
    write_one(metadata("thread_name", buffer.number, buffer.name));
    for (const ProfileEvent& event : buffer.events) {
      write_one({{"ph", "X"},
                 {"name", event.name},
                 {"cat", event.level == ProfileLevel::layers ? "layer" : "phase"},
                 {"pid", ::getpid()},
                 {"tid", buffer.number},
                 {"ts", microseconds(event.begin)},
                 {"dur", microseconds(event.end - event.begin)},
                 {"args", json_of(event.arguments)}});
    }
  }

  static std::string row_of(const ProfileSpan& span) { return std::string(span.track) + " " + std::to_string(span.id); }

  static Json json_of(const ProfileSpan& span, bool begins, double time) {
    Json json{{"ph", begins ? "b" : "e"}, {"name", span.name}, {"cat", span.track}, {"id", row_of(span)},
              {"pid", ::getpid()},        {"tid", ::getpid()}, {"ts", time}};
    if (!begins) return json;
    json["args"] = json_of(span.arguments);
    if (!span.request.empty()) json["args"]["request"] = span.request;
    return json;
  }

  template <class Write>
  void write_spans(const Write& write_one) const {
    std::map<std::string, std::vector<const ProfileSpan*>> rows;
    for (const ProfileSpan& span : spans_) rows[row_of(span)].push_back(&span);
    for (auto& [name, row] : rows) {
      std::stable_sort(row.begin(), row.end(), [](const ProfileSpan* a, const ProfileSpan* b) {
        return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
      });
      std::vector<const ProfileSpan*> open;
      const auto close_until = [&](ProfileClock::time_point time) {
        for (; !open.empty() && open.back()->end <= time; open.pop_back())
          write_one(json_of(*open.back(), /*begins=*/false, microseconds(open.back()->end)));
      };
      for (const ProfileSpan* span : row) {
        close_until(span->begin);
        write_one(json_of(*span, /*begins=*/true, microseconds(span->begin)));
        open.push_back(span);
      }
      close_until(ProfileClock::time_point::max());
    }
  }

  void write(const std::string& path) {
    const Json other{{"format", "based profile 1"}, {"events", events_.load()}, {"dropped_events", dropped_.load()}};
    AtomicFile file(path);
    std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": " + dump_json(other) + ", \"traceEvents\": [\n";
    const auto write_one = [&](const Json& event) {
      text += dump_json(event) + ",\n";
      if (text.size() < kWriteBytes) return;
      file.write(std::as_bytes(std::span(text)));
      text.clear();
    };
    write_one(metadata("process_name", ::getpid(), options_.process));
    for (const auto& buffer : threads_) write_events(*buffer, write_one);
    for (const auto& [name, buffer] : tracks_) write_events(*buffer, write_one);
    write_spans(write_one);
    const Json end{{"ph", "i"},         {"s", "g"},          {"name", dropped_ > 0 ? "end; events were dropped" : "end"},
                   {"pid", ::getpid()}, {"tid", ::getpid()}, {"ts", microseconds(ProfileClock::now())}};
    text += dump_json(end) + "\n]}\n";
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }

  std::mutex mutex_;  // guards the containers and options below; each buffer has its own
  ProfileOptions options_;
  std::vector<std::shared_ptr<ProfileBuffer>> threads_;
  std::map<std::string, std::shared_ptr<ProfileBuffer>> tracks_;
  std::vector<ProfileSpan> spans_;
  std::set<std::string> names_;
  std::atomic<ProfileClock::time_point> begin_{};
  std::atomic<bool> recording_{false};
  std::atomic<int64_t> events_{0}, dropped_{0}, steps_{0};
};

ProfileRecorder& profile_recorder() {
  static ProfileRecorder recorder;
  return recorder;
}

ProfileBuffer& thread_profile_buffer() {
  thread_local const std::shared_ptr<ProfileBuffer> buffer = profile_recorder().make_thread_buffer();
  return *buffer;
}

}  // namespace

void ProfileRange::begin(ProfileLevel level, const char* name, const ProfileArguments& arguments) {
  ProfileEvent& event = event_.emplace();
  event.level = level, event.name = name, event.arguments = arguments;
  if (profile_hooks().push != nullptr) profile_hooks().push(name);
  event.begin = ProfileClock::now();
}

void ProfileRange::end() {
  event_->end = ProfileClock::now();
  if (profile_hooks().pop != nullptr) profile_hooks().pop();
  profile_recorder().add(thread_profile_buffer(), *event_);
}

ProfileSession::ProfileSession(std::string path, const ProfileOptions& options) : path_(std::move(path)) {
  if (path_.empty()) return;
  try {
    check_writable(path_);
  } catch (const Error& error) {
    throw UsageError("--profile " + std::string(error.what()) + "; name a file in a folder that exists and can be written");
  }
  profile_recorder().start(options);
}

ProfileSession::~ProfileSession() {
  if (path_.empty()) return;
  try {
    if (profile_recorder().is_empty())
      profile_recorder().stop();
    else
      finish();
  } catch (const std::exception& error) {
    log_warning(std::string("the profile is lost: ") + error.what());
  }
}

void ProfileSession::finish() {
  if (path_.empty()) return;
  const std::string path = std::exchange(path_, "");
  const int64_t events = profile_recorder().stop_and_write(path);
  log_info("profile of " + std::to_string(events) + " events in " + path + "; https://ui.perfetto.dev opens it");
}

void next_profiled_step() { profile_recorder().next_step(); }

const char* profile_name(const std::string& name) { return profile_recorder().name(name); }

void name_profile_thread(const char* name) {
  ProfileBuffer& buffer = thread_profile_buffer();
  const std::lock_guard lock(buffer.mutex);
  buffer.name = name;
}

void add_profile_event(const std::string& track, const ProfileEvent& event) {
  profile_recorder().add(*profile_recorder().track(track), event);
}

void add_profile_span(ProfileSpan span) { profile_recorder().add(std::move(span)); }

ProfileHooks& profile_hooks() {
  static ProfileHooks hooks;
  return hooks;
}

}  // namespace based
