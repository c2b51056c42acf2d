#include "based/core/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "based/core/descriptors.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 30;
constexpr const char* kClearLine = "\r\x1b[K";

std::mutex stderr_mutex;
Progress* active = nullptr;  // the line being drawn on a terminal, if any

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Errors are ignored: a failure to write progress must not stop the work.
void write_progress(int descriptor, std::string_view text) { static_cast<void>(write_all(descriptor, text)); }

bool is_terminal(const ProgressOptions& options) {
  if (options.terminal_width != 0) return options.terminal_width > 0;
  const char* term = std::getenv("TERM");
  return ::isatty(options.descriptor) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

int terminal_columns(const ProgressOptions& options) {
  if (options.terminal_width > 0) return options.terminal_width;
  winsize size{};
  return ::ioctl(options.descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string two_digits(int64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); }

}  // namespace

Progress::Progress(const std::string& label, int64_t total, ProgressOptions options, int64_t done)
    : label_(shortened_lines(escape_controls(label))),
      total_(total),
      first_(done),
      done_(done),
      options_(options),
      started_(now()),
      last_drawn_(started_) {
  terminal_ = !options_.quiet && is_terminal(options_);
  if (terminal_ && !is_delayed()) {
    const std::lock_guard lock(stderr_mutex);
    active = this;
    draw(false);
  }
}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, Fields fields) {
  if (options_.quiet) return;
  const std::lock_guard lock(stderr_mutex);
  done_ = done;
  fields_ = std::move(fields);
  dirty_ = true;
  if (is_delayed()) return;
  if (terminal_ && active == nullptr) active = this;
  if (now() - last_drawn_ >= (terminal_ ? kRedrawSeconds : options_.plain_interval)) draw(false);
}

void Progress::finish() {
  if (options_.quiet) return;
  const std::lock_guard lock(stderr_mutex);
  if (finished_) return;
  finished_ = true;
  if (active == this) active = nullptr;
  if (!is_delayed() && (terminal_ || dirty_)) draw(true);
}

bool Progress::is_delayed() const { return options_.delay > 0 && now() - started_ < options_.delay; }

void Progress::draw(bool last) {
  if (terminal_) {
    write_progress(options_.descriptor, kClearLine + line(terminal_columns(options_) - 1) + (last ? "\n" : ""));
  } else {
    write_progress(options_.descriptor, line(-1) + "\n");
  }
  last_drawn_ = now();
  dirty_ = false;
}

std::string Progress::line(int columns) const {
  std::string out = label_;
  if (total_ > 0) {
    const double fraction = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    if (columns >= 0) {
      const auto filled = static_cast<size_t>(fraction * kBarWidth);
      out.append("  [").append(filled, '#').append(kBarWidth - filled, '-').append("]");
    }
    out += "  " + padded_left(format_number(std::floor(fraction * 100), 0), 3) + " %";
  }
  out.append("  ").append(std::to_string(done_));
  if (total_ > 0) out.append("/").append(std::to_string(total_));
  for (const auto& [name, value] : fields_) out.append("  ").append(escape_controls(name)).append(" ").append(escape_controls(value));
  const double elapsed = now() - started_;
  if (total_ > 0 && done_ < total_ && done_ > first_) {
    out += "  ETA " + format_duration(elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_ - first_));
  } else if (total_ == 0 || done_ >= total_) {
    out += "  in " + format_duration(elapsed);
  }
  if (columns >= 0 && out.size() > static_cast<size_t>(columns)) out.resize(static_cast<size_t>(columns));
  return out;
}

void write_above_progress(std::string_view text) {
  const std::lock_guard lock(stderr_mutex);
  if (active != nullptr) write_progress(active->options_.descriptor, kClearLine);
  write_progress(STDERR_FILENO, text);
  if (active != nullptr) active->draw(false);
}

std::string format_duration(double seconds) {
  if (!(seconds > -1e9 && seconds < 1e9)) return "?";
  if (seconds < 59.95) return format_number(seconds, 1) + "s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return std::to_string(whole / 60) + "m" + two_digits(whole % 60) + "s";
  return std::to_string(whole / 3600) + "h" + two_digits(whole / 60 % 60) + "m";
}

std::string format_count(double count) {
  static constexpr const char* kSuffix[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::fabs(count) >= 999.5 && unit + 1 < std::size(kSuffix)) {
    count /= 1000;
    ++unit;
  }
  const bool whole = std::fabs(count) >= 99.95 || (unit == 0 && count == std::floor(count));
  return format_number(count, whole ? 0 : std::fabs(count) >= 9.995 ? 1 : 2) + kSuffix[unit];
}

std::string format_bytes(double bytes) {
  static constexpr const char* kSuffix[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1023.95 && unit + 1 < std::size(kSuffix)) {
    bytes /= 1024;
    ++unit;
  }
  return format_number(bytes, unit == 0 || std::fabs(bytes) >= 99.95 ? 0 : 1) + kSuffix[unit];
}

}  // namespace based
