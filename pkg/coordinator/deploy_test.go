package coordinator_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"sigs.k8s.io/yaml"

	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// deploy is the folder of what is shipped for those who run nodes.
const deploy = "../../docs/deploy/"

// measured gives the metrics of a node that runs under leases, with their labels.
func measured(t *testing.T) map[string][]string {
	t.Helper()
	metrics := map[string][]string{}
	synctest.Test(t, func(t *testing.T) {
		r := &runs{now: map[string][]string{}}
		n := startNode(t, newRoot(t, 3), coordinator.NodeOptions{
			NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Exclusive: []fleet.Service{fleet.GC},
		})
		time.Sleep(5 * time.Second)
		answer := httptest.NewRecorder()
		coordinator.NewServer(coordinator.ServerOptions{Node: n.Node}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		for _, m := range regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? `).FindAllStringSubmatch(answer.Body.String(), -1) {
			metrics[m[1]] = append(metrics[m[1]], m[2])
		}
		n.end(t)
	})
	if len(metrics) < 12 {
		t.Fatalf("only %d metrics: %v", len(metrics), metrics)
	}
	return metrics
}

// The numbers of leases are of those of tasks and of those of keys.
func TestMetricsOfKeys(t *testing.T) {
	gc := map[fleet.Service]coordinator.Task{fleet.GC: (&runs{now: map[string][]string{}}).task()}
	for _, c := range []struct {
		name  string
		tasks map[fleet.Service]coordinator.Task
		keys  int
		want  map[string]string
	}{
		{"keys alone", nil, 2, map[string]string{"leases_held": "2", "lease_least_left_seconds": "0.5", "lease_renewal_seconds": "7", "lease_renewals_failed_total": "9"}},
		{"no key", nil, 0, map[string]string{"leases_held": "0", "lease_least_left_seconds": "0", "lease_renewal_seconds": "7", "lease_renewals_failed_total": "9"}},
		{"tasks and keys", gc, 2, map[string]string{"leases_held": "5", "lease_least_left_seconds": "0.5", "lease_renewal_seconds": "7", "lease_renewals_failed_total": "9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keys := &keyHolder{held: c.keys, stats: leases.KeeperStats{LeastLeft: time.Second / 2, Renewal: 7 * time.Second, Failed: 9}}
				o := coordinator.NodeOptions{NodeID: "a", Tasks: c.tasks, Keys: keys}
				if c.tasks != nil {
					o.Exclusive = []fleet.Service{fleet.GC}
				}
				n := startNode(t, newRoot(t, 3), o)
				time.Sleep(5 * time.Second)
				answer := httptest.NewRecorder()
				coordinator.NewServer(coordinator.ServerOptions{Node: n.Node}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
				for name, want := range c.want {
					if line := "\nshardctl_" + name + " " + want + "\n"; !strings.Contains(answer.Body.String(), line) {
						t.Errorf("no %q in %s", line, answer.Body)
					}
				}
				n.end(t)
			})
		})
	}
}

var (
	metricName = regexp.MustCompile(`\bshardctl_\w+`)
	stateMatch = regexp.MustCompile(`state=~?"([^"]*)"`)
	// labelValues is a query of Grafana's for the values of a label.
	labelValues = regexp.MustCompile(`^label_values\((.*), \w+\)$`)
)

// grafanaTime is a variable of Grafana's that stands for a duration.
var grafanaTime = strings.NewReplacer("$__rate_interval", "1m", "$__interval", "1m", "$__range", "1h")

// checkExpression checks that a PromQL expression can be read, and that metrics and
// states are those of a node.
func checkExpression(t *testing.T, where, expr string, metrics map[string][]string, used map[string]bool) {
	t.Helper()
	if _, err := metricsql.Parse(grafanaTime.Replace(expr)); err != nil {
		t.Errorf("%s: %s: %v", where, expr, err)
		return
	}
	for _, name := range metricName.FindAllString(expr, -1) {
		if metrics[name] == nil {
			t.Errorf("%s: no node has the metric %s", where, name)
		}
		used[name] = true
	}
	for _, m := range stateMatch.FindAllStringSubmatch(expr, -1) {
		for _, state := range strings.Split(m[1], "|") {
			if !slices.ContainsFunc(metrics["shardctl_tasks"], func(labels string) bool { return strings.Contains(labels, `state="`+state+`"`) }) {
				t.Errorf("%s: no task has the state %s", where, state)
			}
		}
	}
}

// What is shipped to watch nodes names the metrics that they have, and all of them.
func TestDeployedMetrics(t *testing.T) {
	metrics := measured(t)
	t.Run("alerts", func(t *testing.T) {
		text, err := os.ReadFile(deploy + "alerts.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		}
		if err := yaml.UnmarshalStrict(text, &file); err != nil {
			t.Fatal(err)
		}
		used, names := map[string]bool{}, map[string]bool{}
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" || names[rule.Alert] || rule.Expr == "" || rule.Annotations["summary"] == "" || rule.Annotations["action"] == "" {
					t.Errorf("rule %+v", rule)
				}
				names[rule.Alert] = true
				if !slices.Contains([]string{"info", "warning", "critical"}, rule.Labels["severity"]) {
					t.Errorf("%s: severity %q", rule.Alert, rule.Labels["severity"])
				}
				if !regexp.MustCompile(`^([0-9]+[smhd])?$`).MatchString(rule.For) {
					t.Errorf("%s: for %q", rule.Alert, rule.For)
				}
				checkExpression(t, rule.Alert, rule.Expr, metrics, used)
			}
		}
		for name := range metrics {
			if !used[name] {
				t.Errorf("no alert looks at %s", name)
			}
		}
	})
	t.Run("dashboard", func(t *testing.T) {
		text, err := os.ReadFile(deploy + "grafana-dashboard.json")
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Title, UID    string
			SchemaVersion int
			Panels        []struct {
				ID          int
				Title, Type string
				GridPos     struct{ H, W, X, Y int }
				Targets     []struct{ RefID, Expr string }
			}
			Templating struct {
				List []struct{ Name, Definition string }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for i, panel := range board.Panels {
			if panel.ID != i+1 || panel.Title == "" || len(panel.Targets) == 0 || panel.GridPos.X+panel.GridPos.W > 24 {
				t.Errorf("panel %+v", panel)
			}
			for _, other := range board.Panels[:i] {
				a, b := panel.GridPos, other.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("panels %q and %q overlap", panel.Title, other.Title)
				}
			}
			for _, target := range panel.Targets {
				checkExpression(t, panel.Title, target.Expr, metrics, used)
			}
		}
		for _, variable := range board.Templating.List {
			if variable.Name == "datasource" {
				continue // it asks Grafana alone
			}
			query := labelValues.FindStringSubmatch(variable.Definition)
			if query == nil {
				t.Errorf("variable %s: %s", variable.Name, variable.Definition)
				continue
			}
			checkExpression(t, variable.Name, query[1], metrics, used)
		}
		for name := range metrics {
			if !used[name] {
				t.Errorf("no panel shows %s", name)
			}
		}
	})
}
