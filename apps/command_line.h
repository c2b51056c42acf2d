// What a subcommand takes on the command line. CLI11 stays behind this class: its header costs 20 s a file.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace based::apps {

class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : app_(&app) {}

  // "--name" or, for what stands without a flag, "name". Where a value is given it overwrites `value`, which must live until the command
  // has run; what `value` holds now is shown as the default.
  template <class T>
  void add_option(const std::string& name, T& value, const std::string& help) {
    add(name, &value, help, false);
  }
  template <class T>
  void add_required(const std::string& name, T& value, const std::string& help) {
    add(name, &value, help, true);
  }
  void add_flag(const std::string& name, bool& value, const std::string& help);
  CommandLine add_subcommand(const std::string& name, const std::string& summary);  // one of those added must be named
  void callback(std::function<void()> body);                                        // runs where everything is right

 private:
  using Value = std::variant<std::string*, bool*, int*, int64_t*, uint64_t*, double*, std::vector<std::string>*, std::vector<int64_t>*>;
  void add(const std::string& name, Value value, const std::string& help, bool required);
  CLI::App* app_;
};

}  // namespace based::apps
