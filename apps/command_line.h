// What a subcommand takes on the command line. CLI11 stays behind these classes: its header costs 20 s a file.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace based::apps {

// What numbers an option may have; both ends may be had.
template <class T>
struct Range {};
template <>
struct Range<std::string> {
  bool may_be_empty = true;
};
template <>
struct Range<int64_t> {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
};
template <>
struct Range<double> {
  double least = std::numeric_limits<double>::lowest(), most = std::numeric_limits<double>::max();
};

// The range of options that name a file or folder: not empty.
inline constexpr Range<std::string> kPath{false};

class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : app_(&app) {}

  // "--name" or, for what stands without a flag, "name". Where a value is given it overwrites `value`, which must live until the command
  // has run; what `value` holds now is shown as the default. T is std::string (taken as it is), an optional one (where an empty text is not
  // the same as none), bool (true or false), int64_t or double (decimal and finite), or a list of strings or integers: an option's has one
  // value an occurrence, of anything else the last one counts.
  template <class T>
  void add_option(const std::string& name, T& value, const std::string& help, Range<T> range = {}) {
    add(name, Target<T>{&value, range}, help, false);
  }
  // The same where one must be given; a std::string must then not be empty.
  template <class T>
  void add_required(const std::string& name, T& value, const std::string& help) {
    Range<T> range;
    if constexpr (std::is_same_v<T, std::string>) range.may_be_empty = false;
    add(name, Target<T>{&value, range}, help, true);
  }
  void add_flag(const std::string& name, bool& value, const std::string& help);
  CommandLine add_subcommand(const std::string& name, const std::string& summary);  // one of those added must be named
  void callback(std::function<void()> body);                                        // runs where everything is right

 private:
  template <class T>
  struct Target {
    T* value;
    Range<T> range;
  };
  using AnyTarget = std::variant<Target<std::string>, Target<std::optional<std::string>>, Target<bool>, Target<int64_t>, Target<double>,
                                 Target<std::vector<std::string>>, Target<std::vector<int64_t>>>;
  void add(const std::string& name, AnyTarget target, const std::string& help, bool required);
  CLI::App* app_;
};

// The whole program: its commands are added to commands().
class Program {
 public:
  Program(const std::string& name, const std::string& summary, const std::string& version);
  ~Program();
  CommandLine commands();
  // Runs the command that is named, or prints help or version. Throws UsageError for anything wrong, with the nearest name that there is.
  void run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace based::apps
