// A queue that no client can fill for the others. Items belong to groups (the jobs of one HTTP request), and groups to clients. Items are
// taken from the clients in turn, from each client's groups in turn, and within a group in its order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace based {

template <class Item>
class FairQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Whether an item of another group is queued.
  bool has_others(const std::string& client, int64_t group) const {
    const auto own = clients_.find(client);
    if (own == clients_.end()) return size_ > 0;
    const auto items = own->second.groups.find(group);
    return size_ > (items == own->second.groups.end() ? 0 : items->second.size());
  }

  // `group`: a number that no group of another client has. `first`: the item is taken before the others of its group.
  void push(const std::string& client, int64_t group, Item item, bool first = false) {
    Client& own = clients_[client];
    if (own.groups.empty()) turns_.push_back(client);
    std::deque<Item>& items = own.groups[group];
    if (items.empty()) own.turns.push_back(group);
    items.insert(first ? items.begin() : items.end(), std::move(item));
    ++size_;
  }

  // The next item. The queue must not be empty.
  Item pop() {
    const std::string client = std::move(turns_.front());
    turns_.pop_front();
    Client& own = clients_.at(client);
    const int64_t group = own.turns.front();
    own.turns.pop_front();
    std::deque<Item>& items = own.groups.at(group);
    Item item = std::move(items.front());
    items.pop_front();
    --size_;
    if (items.empty())
      own.groups.erase(group);
    else
      own.turns.push_back(group);
    if (own.groups.empty())
      clients_.erase(client);
    else
      turns_.push_back(client);
    return item;
  }

  // Removes the group's items for which `unwanted(item)` is true.
  template <class Unwanted>
  void remove(const std::string& client, int64_t group, const Unwanted& unwanted) {
    const auto own = clients_.find(client);
    if (own == clients_.end()) return;
    const auto items = own->second.groups.find(group);
    if (items == own->second.groups.end()) return;
    size_ -= std::erase_if(items->second, unwanted);
    if (!items->second.empty()) return;
    own->second.groups.erase(items);
    std::erase(own->second.turns, group);
    if (!own->second.groups.empty()) return;
    clients_.erase(own);
    std::erase(turns_, client);
  }

 private:
  struct Client {
    std::map<int64_t, std::deque<Item>> groups;  // none is empty
    std::deque<int64_t> turns;                   // the groups, in the order of their turns
  };

  std::map<std::string, Client> clients_;  // none is empty
  std::deque<std::string> turns_;          // the clients, in the order of their turns
  size_t size_ = 0;
};

}  // namespace based
