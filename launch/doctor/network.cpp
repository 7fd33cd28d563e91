// Interfaces, the connections that MPI has really made, and the clocks of other ranks.
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "launch/doctor/doctor.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kNetwork = "network";

double wall_clock() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

// Inodes of the sockets that this process has open.
std::set<std::string> own_sockets() {
    std::set<std::string> inodes;
    DIR* folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) return inodes;
    while (const dirent* entry = ::readdir(folder)) {
        char target[64] = {};
        const std::string link = concat("/proc/self/fd/", entry->d_name);
        if (::readlink(link.c_str(), target, sizeof target - 1) <= 0) continue;
        const std::string text = target;  // socket:[INODE]
        if (text.starts_with("socket:[")) inodes.insert(text.substr(8, text.size() - 9));
    }
    ::closedir(folder);
    return inodes;
}

// Bridges and pairs that container and virtual-machine software makes, on which no other host listens.
bool is_virtual(const std::string& name) {
    for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc",
                               "lxdbr", "podman", "vmnet", "kube"}) {
        if (name.starts_with(prefix)) return true;
    }
    return false;
}

std::string joined(const std::vector<std::string>& names, const char* between = ", ") {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : between) + name;
    return text;
}

std::vector<std::string> parts_of(const std::string& list) {
    std::vector<std::string> parts;
    std::istringstream in(list);
    for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
    return parts;
}

// "eth0", or "10.0.0.0/24" of Open MPI's lists.
bool names(const std::string& item, const Interface& interface) {
    const std::size_t slash = item.find('/');
    if (slash == std::string::npos) return item == interface.name;
    in_addr network{};
    if (::inet_pton(AF_INET, item.substr(0, slash).c_str(), &network) != 1) return false;
    const int bits = std::atoi(item.c_str() + slash + 1);
    const std::uint32_t mask = bits <= 0 ? 0 : ~std::uint32_t{0} << (32 - std::min(bits, 32));
    return (interface.address & mask) == (ntohl(network.s_addr) & mask);
}

std::string setting_of(const RankFacts& rank, const char* name) {
    const auto at = rank.mca.find(name);
    return at == rank.mca.end() ? "" : at->second;
}

// Ranks on whose host nothing is named by Open MPI's list of that name.
std::vector<int> ranks_without(const Survey& survey, const char* list) {
    std::vector<int> without;
    for (int r = 0; r < static_cast<int>(survey.ranks.size()); ++r) {
        const RankFacts& rank = survey.ranks[static_cast<std::size_t>(r)];
        const std::vector<std::string> items = parts_of(setting_of(rank, list));
        bool found = items.empty();
        for (const std::string& item : items) {
            for (const Interface& interface : rank.interfaces) found |= names(item, interface);
        }
        if (!found) without.push_back(r);
    }
    return without;
}

// "10.0.0.0/24".
std::string network_of(const Interface& interface) {
    const int bits = std::clamp(interface.prefix, 0, 32);
    const std::uint32_t mask = bits == 0 ? 0 : ~std::uint32_t{0} << (32 - bits);
    const std::uint32_t at = interface.address & mask;
    return concat(at >> 24, ".", (at >> 16) & 255, ".", (at >> 8) & 255, ".", at & 255, "/", bits);
}

// The networks that every host has, without those inside a host.
std::vector<std::string> shared_networks(const Survey& survey) {
    std::vector<std::string> shared;
    for (const Interface& candidate : survey.ranks[0].interfaces) {
        const std::string network = network_of(candidate);
        const auto has = [&](const RankFacts& rank) {
            return std::any_of(
                rank.interfaces.begin(), rank.interfaces.end(), [&](const Interface& interface) {
                    return network_of(interface) == network && !is_virtual(interface.name);
                });
        };
        const bool is_new = std::find(shared.begin(), shared.end(), network) == shared.end();
        if (is_new && std::all_of(survey.ranks.begin(), survey.ranks.end(), has)) {
            shared.push_back(network);
        }
    }
    return shared;
}

// How to name a network, one that is there if all hosts have one.
std::string how_to_name_network(const Survey& survey, const RankFacts& without) {
    const std::vector<std::string> shared = shared_networks(survey);
    if (!shared.empty()) {
        const std::string& one = shared[0];
        return concat("name a network that all hosts have, ", joined(shared, " or "),
                      ": NETWORK=", one,
                      " before launch/mpirun.sh, or mpirun --mca btl_tcp_if_include ", one,
                      " --mca oob_tcp_if_include ", one);
    }
    std::vector<std::string> there;
    for (const Interface& interface : without.interfaces) {
        there.push_back(concat(network_of(interface), " (", interface.name, ")"));
    }
    return concat("no network is on every host; ", without.host, " has ",
                  there.empty() ? "none but lo" : joined(there),
                  ". Name one that reaches them all in CIDR form: NETWORK=.. before "
                  "launch/mpirun.sh, or mpirun --mca btl_tcp_if_include .. --mca "
                  "oob_tcp_if_include ..");
}

Check check_mpi_traffic(const Survey& survey) {
    Check check{kNetwork, "MPI traffic", Verdict::kOk, "", ""};
    const RankFacts& first = survey.ranks[0];
    for (const char* list : {"btl_tcp_if_include", "oob_tcp_if_include"}) {
        const std::vector<int> without = ranks_without(survey, list);
        if (without.empty()) continue;
        const RankFacts& rank = survey.ranks[static_cast<std::size_t>(without[0])];
        check.verdict = Verdict::kWrong;
        check.fact =
            concat(list, "=", setting_of(rank, list), " names no interface of ", rank.host);
        check.remedy = how_to_name_network(survey, rank);
        return check;
    }
    if (hosts_of(survey).size() == 1) {
        check.fact = survey.ranks.size() == 1 ? "none: one rank" : "one host: shared memory";
        return check;
    }
    std::vector<std::string> wrong, tempting;
    for (const RankFacts& rank : survey.ranks) {
        for (const std::string& name : rank.used) {
            if (is_virtual(name)) wrong.push_back(concat(name, " on ", rank.host));
        }
        for (const Interface& interface : rank.interfaces) {
            const std::string text = concat(interface.name, " on ", rank.host);
            const bool is_new = tempting.empty() || tempting.back() != text;
            if (is_virtual(interface.name) && is_new) tempting.push_back(text);
        }
    }
    const auto used = groups_of(survey.ranks, [](const RankFacts& rank) {
        return rank.used.empty() ? std::string("no TCP connection") : "over " + joined(rank.used);
    });
    check.fact = text_of(used);
    const std::string list = setting_of(first, "btl_tcp_if_include");
    const bool chosen = !list.empty() || !setting_of(first, "btl_tcp_if_exclude").empty();
    if (!list.empty()) check.fact += concat(" (btl_tcp_if_include=", list, ")");
    if (!wrong.empty()) {
        check.verdict = Verdict::kWarning;
        check.fact += concat("; ", wrong[0], " is made by container or virtual-machine software");
        check.remedy = how_to_name_network(survey, first);
    } else if (!tempting.empty() && !chosen) {
        check.verdict = Verdict::kWarning;
        check.fact += concat("; ", tempting[0], " could be taken instead");
        check.remedy = how_to_name_network(survey, first);
    }
    return check;
}

// NCCL's rule: a list of prefixes; "^" in front excludes them, "=" wants whole names.
bool nccl_finds_interface(const std::string& setting, const RankFacts& rank) {
    const bool excludes = setting.starts_with("^");
    std::string list = excludes ? setting.substr(1) : setting;
    const bool whole = list.starts_with("=");
    if (whole) list = list.substr(1);
    for (const Interface& interface : rank.interfaces) {
        bool named = false;
        for (const std::string& item : parts_of(list)) {
            named |= whole ? interface.name == item : interface.name.starts_with(item);
        }
        if (named != excludes) return true;
    }
    return parts_of(list).empty() || (!excludes && list.starts_with("lo"));
}

Check check_nccl_interface(const Survey& survey) {
    Check check{kNetwork, "NCCL traffic", Verdict::kOk, "", ""};
    const auto setting = [](const RankFacts& rank) {
        const auto at = rank.environment.find("NCCL_SOCKET_IFNAME");
        return at == rank.environment.end() ? std::string() : at->second;
    };
    for (const RankFacts& rank : survey.ranks) {
        if (nccl_finds_interface(setting(rank), rank)) continue;
        std::vector<std::string> there;
        for (const Interface& interface : rank.interfaces) there.push_back(interface.name);
        check.verdict = Verdict::kWrong;
        check.fact =
            concat("NCCL_SOCKET_IFNAME=", setting(rank), " leaves no interface of ", rank.host,
                   ", which has ", there.empty() ? "none but lo" : joined(there));
        check.remedy =
            "a prefix (eth), a whole name (=eth0) or what to leave out (^docker,lo); -x hands it "
            "to "
            "all hosts";
        return check;
    }
    const std::string text = setting(survey.ranks[0]);
    check.fact =
        text.empty() ? "NCCL_SOCKET_IFNAME is not set: NCCL chooses" : "NCCL_SOCKET_IFNAME=" + text;
    return check;
}

}  // namespace

std::vector<Interface> interfaces_of_host() {
    std::vector<Interface> interfaces;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return interfaces;
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
        const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
        if (!is_up || at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
        const auto word = [](const sockaddr* address) {
            return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
        };
        const int prefix = at->ifa_netmask == nullptr ? 32 : std::popcount(word(at->ifa_netmask));
        interfaces.push_back({at->ifa_name, word(at->ifa_addr), prefix});
    }
    ::freeifaddrs(list);
    return interfaces;
}

std::vector<std::string> used_interfaces(const std::vector<Interface>& interfaces) {
    // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; addresses as hexadecimal words
    // in the order of the network.
    const std::set<std::string> own = own_sockets();
    std::ifstream table("/proc/self/net/tcp");
    std::set<std::string> used;
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
        std::istringstream in(line);
        std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
        in >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
            timeout >> inode;
        if (state != "01" || own.count(inode) == 0) continue;  // 01: established
        const std::uint32_t address =
            ntohl(static_cast<std::uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16)));
        for (const Interface& interface : interfaces) {
            if (interface.address == address) used.insert(interface.name);
        }
    }
    return {used.begin(), used.end()};
}

void measure_network(Communicator& world, RankFacts& facts) {
    constexpr int kRounds = 8;
    const Tensor number = Tensor::zeros({2}, DType::kFloat64);
    double* value = number.data<double>();
    const int rank = world.rank();
    for (int other = 1; other < world.size(); ++other) {
        if (rank != 0 && rank != other) continue;
        double shortest = 1e300, ahead = 0.0;
        for (int round = 0; round < kRounds; ++round) {
            if (rank == other) {
                world.receive(number, 0);
                value[0] = wall_clock();
                world.send(number, 0);
                continue;
            }
            const auto start = std::chrono::steady_clock::now();
            const double before = wall_clock();
            world.send(number, other);
            world.receive(number, other);
            const std::chrono::duration<double> trip = std::chrono::steady_clock::now() - start;
            if (trip.count() >= shortest) continue;
            shortest = trip.count();
            // The other's clock was read half-way, as far as can be told.
            ahead = value[0] - (before + shortest / 2);
        }
        if (rank == 0) {
            value[0] = ahead;
            value[1] = shortest;
            world.send(number, other);
        } else {
            world.receive(number, 0);
            facts.clock_ahead = value[0];
            facts.round_trip = value[1];
        }
    }
    facts.used = used_interfaces(facts.interfaces);
}

std::vector<Check> check_network(const Survey& survey) {
    return {check_mpi_traffic(survey), check_nccl_interface(survey)};
}

}  // namespace evenkeel::doctor
