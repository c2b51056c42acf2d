// The options and arguments of subcommands. These classes hide CLI11, whose header takes 20 s to compile in each file that includes it.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <variant>
#include <vector>

#include "apps/command_tree.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace based::apps {

// The values that an option accepts; `least` and `most` are included.
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

// For options that name a file or folder: the value must not be empty.
inline constexpr Range<std::string> kPath{false};

// The values that shells complete for options; see CommandLine::offer.
struct Offer {
  std::function<std::vector<std::string>()> values;
  bool files_too = false;
};
using OfferTable = std::unordered_map<const CLI::Option*, Offer>;

class CommandLine {
 public:
  CommandLine(CLI::App& app, OfferTable& offers) : app_(&app), offers_(&offers) {}

  // Adds an option "--name" or a positional argument "name". Parsing stores the user's value in `value`, which must live until the command
  // has run; its current value is shown as the default. T is one of:
  //   std::string                   any text
  //   std::optional<std::string>    any text; distinguishes an empty text from an absent option
  //   bool                          true or false
  //   int64_t, double               a decimal, finite number
  //   a vector of strings or int64  a list, one element per occurrence of the option
  // If an option that is not a list occurs several times, the last occurrence counts.
  template <class T>
  void add_option(const std::string& name, T& value, const std::string& help, Range<T> range = {}) {
    add(name, Target<T>{&value, range}, help, false);
  }
  // The same, but the user must give a value; a std::string must not be empty.
  template <class T>
  void add_required(const std::string& name, T& value, const std::string& help) {
    Range<T> range;
    if constexpr (std::is_same_v<T, std::string>) range.may_be_empty = false;
    add(name, Target<T>{&value, range}, help, true);
  }
  void add_flag(const std::string& name, bool& value, const std::string& help);
  // Sets the values that shells complete for the option or argument `name`, which was added before. It may accept others, so the command
  // still checks the value. Without a call, shells complete file names for text, and the usual values of --device and --dtype.
  void offer(const std::string& name, std::function<std::vector<std::string>()> values, bool files_too = false);
  void offer(const std::string& name, std::vector<std::string> values, bool files_too = false);
  // Parsing throws UsageError if the user gives the option or flag `name` without the other one. Both were added before.
  void needs(const std::string& name, const std::string& other);
  CommandLine add_subcommand(const std::string& name, const std::string& summary);  // the user must name one of the subcommands
  // A subcommand of a command that also runs without one. Where the user names it, the command's own callback is not called, so the command
  // must not have required options.
  CommandLine add_alternative(const std::string& name, const std::string& summary);
  void callback(std::function<void()> body);  // called after successful parsing

  // The whole program that this command belongs to. Complete only after all commands have been added.
  CommandEntry program_tree() const;

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
  OfferTable* offers_;
};

// The whole program. Its commands are added to commands().
class Program {
 public:
  Program(const std::string& name, const std::string& summary, const std::string& version);
  ~Program();
  CommandLine commands();
  // Runs the command that the arguments name, or prints the help or the version. Throws UsageError for invalid arguments; for an unknown
  // name it suggests the nearest known one.
  void run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  OfferTable offers_;
};

}  // namespace based::apps
