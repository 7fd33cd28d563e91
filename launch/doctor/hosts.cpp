// Which rank is where, and whether the hosts agree about names and time.
#include <algorithm>
#include <cmath>

#include "launch/doctor/doctor.h"
#include "launch/saved_run.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kHosts = "hosts";
constexpr double kClocks = 1.0;  // seconds apart that matter to whoever compares times in logs

std::string seconds_text(double seconds) {
    const double size = std::abs(seconds);
    if (size < 1e-3) return format("%.3g", seconds * 1e6) + " us";
    if (size < 1.0) return format("%.3g", seconds * 1e3) + " ms";
    return format("%.4g", seconds) + " s";
}

Check check_names(const Survey& survey) {
    Check check{kHosts, "ranks", Verdict::kOk, "", ""};
    const std::vector<Group> hosts = hosts_of(survey);
    const auto name = [&](const Group& host) {
        return survey.ranks[static_cast<std::size_t>(host.ranks[0])].host;
    };
    for (const Group& host : hosts) {
        check.fact +=
            concat(check.fact.empty() ? "" : "; ", name(host), ": ", rank_list(host.ranks));
    }
    for (const Group& host : hosts) {
        const RankFacts& rank = survey.ranks[static_cast<std::size_t>(host.ranks[0])];
        const auto same = std::count_if(hosts.begin(), hosts.end(), [&](const Group& other) {
            return name(other) == name(host);
        });
        if (same > 1) {
            check.verdict = Verdict::kWarning;
            check.fact = concat(same, " hosts are called ", name(host),
                                ": programs that tell hosts apart by name take them for one");
            check.remedy =
                "give each a name of its own: hostnamectl set-hostname NAME; containers: "
                "--hostname NAME";
            return check;
        }
        if (rank.ranks_on_node != static_cast<int>(host.ranks.size())) {
            check.verdict = Verdict::kWarning;
            check.fact = concat("MPI puts ", rank.ranks_on_node, " ranks on one host with ",
                                rank_list({host.ranks[0]}), ", by name and boot ", name(host),
                                " has ", host.ranks.size());
            check.remedy = "ranks of one container or network namespace a host";
            return check;
        }
    }
    for (const Group& host : hosts) {
        if (host.ranks.size() == hosts[0].ranks.size()) continue;
        check.verdict = Verdict::kWarning;
        check.fact += ": not the same number everywhere";
        check.remedy = "the same slots for every host in the host file, and -np hosts x slots";
        break;
    }
    return check;
}

Check check_clocks(const Survey& survey) {
    Check check{kHosts, "clocks", Verdict::kOk, "", ""};
    std::size_t last = 0;
    double ahead = 0.0, behind = 0.0, trip = 0.0;
    for (std::size_t r = 1; r < survey.ranks.size(); ++r) {
        const RankFacts& rank = survey.ranks[r];
        if (std::abs(rank.clock_ahead) > std::abs(survey.ranks[last].clock_ahead)) last = r;
        ahead = std::max(ahead, rank.clock_ahead);
        behind = std::min(behind, rank.clock_ahead);
        trip = std::max(trip, rank.round_trip);
    }
    check.fact = concat(seconds_text(ahead - behind),
                        " apart at most; the longest round trip of a "
                        "message to rank 0 took ",
                        seconds_text(trip));
    if (ahead - behind <= kClocks) return check;
    const RankFacts& rank = survey.ranks[last];
    check.verdict = Verdict::kWarning;
    check.fact =
        concat("the clock of ", rank.host, " is ", seconds_text(std::abs(rank.clock_ahead)),
               rank.clock_ahead > 0 ? " ahead of " : " behind ", survey.ranks[0].host,
               "'s: times in logs can't be compared");
    check.remedy =
        "chronyd or systemd-timesyncd on every host; chronyc tracking says what is wrong";
    return check;
}

}  // namespace

std::vector<Check> check_hosts(const Survey& survey) {
    std::vector<Check> checks{check_names(survey)};
    if (survey.ranks.size() > 1) checks.push_back(check_clocks(survey));
    return checks;
}

}  // namespace evenkeel::doctor
