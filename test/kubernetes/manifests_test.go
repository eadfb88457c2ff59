// Package kubernetes reads the manifests of docs/deploy with Kubernetes' own types. It
// is a module of its own, so that these are no dependency of shardctl.
package kubernetes

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestManifests decodes each object as its kind, and takes no field that the kind
// does not have, none twice and none of another type. What the fields say is tested
// beside the command.
func TestManifests(t *testing.T) {
	text, err := os.ReadFile("../../docs/deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[metav1.TypeMeta]func() any{
		{APIVersion: "v1", Kind: "ConfigMap"}:                  func() any { return &corev1.ConfigMap{} },
		{APIVersion: "v1", Kind: "Service"}:                    func() any { return &corev1.Service{} },
		{APIVersion: "apps/v1", Kind: "StatefulSet"}:           func() any { return &appsv1.StatefulSet{} },
		{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}: func() any { return &policyv1.PodDisruptionBudget{} },
	}
	var seen []string
	for _, document := range strings.Split(string(text), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatal(err)
		}
		newObject := kinds[meta]
		if newObject == nil {
			t.Errorf("%+v is not among the kinds", meta)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), newObject()); err != nil {
			t.Errorf("%s: %v", meta.Kind, err)
		}
		// The reading is strict: a field that no kind has is an error.
		if err := yaml.UnmarshalStrict([]byte(document+"\nspec2: {}\n"), newObject()); err == nil {
			t.Errorf("%s takes a field that it does not have", meta.Kind)
		}
		seen = append(seen, meta.Kind)
	}
	slices.Sort(seen)
	if want := []string{"ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"}; !slices.Equal(seen, want) {
		t.Errorf("there are %v, want %v", seen, want)
	}
}
